"""A CloudFormation stack: template, state, creation, reasons of failures, and removal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from compile.aws import Aws, aws_refusals, error_code
from deploy.deployment import Host
from deploy.waiting import Wait
from inference.errors import InvalidRequest, Unavailable

POLL_SECONDS = 3.0
GONE = "DELETE_COMPLETE"
TAG = "outrider:target"
"""Key of the tag on all resources of a target; its value is the target's name."""


Cause = Literal["capacity", "quota", "denied", "image", "other"]
"""The category of a failed launch."""

_SIGNS: Mapping[Cause, str] = {
    "quota": "VcpuLimit|vCPU limit|InstanceLimitExceeded|MaxSpotInstanceCount|Max spot instance",
    "capacity": (
        "Insufficient(Instance|Host)Capacity|not have sufficient|no Spot capacity|SpotMaxPriceToo"
        "Low|not supported in your requested Availability Zone|ReservationCapacityExceeded"
    ),
    "denied": "not authorized|AccessDenied|UnauthorizedOperation",
    "image": "InvalidAMIID|The image id|Unable to fetch parameters",
}
"""EC2 error codes and parts of messages; CloudFormation events contain either."""


class LaunchFailure(NamedTuple):
    """The resource that failed, and the reason."""

    resource: str
    reason: str

    @property
    def cause(self) -> Cause:
        signs = _SIGNS.items()
        return next((cause for cause, sign in signs if re.search(sign, self.reason)), "other")


@dataclass(frozen=True)
class StackState:
    """A stack as CloudFormation describes it."""

    stack_id: str
    status: str
    created: datetime
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def moving(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def whole(self) -> bool:
        """Whether all resources were created."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE")

    @property
    def instance_id(self) -> str | None:
        return self.outputs.get("InstanceId")


class TargetStack:
    """The stack with this name, which may not exist."""

    def __init__(self, aws: Aws, name: str) -> None:
        self.name, self._aws = name, aws
        self._client = aws.client("cloudformation")

    def state(self, stack_id: str | None = None) -> StackState | None:
        """Return the stack's state; None if there is no stack.

        stack_id: of a stack that may have been removed; its last state is kept for months

        Raises InvalidRequest for a stack with this name that Outrider did not create.
        """
        with aws_refusals():
            try:
                described = self._client.describe_stacks(StackName=stack_id or self.name)
            except self._client.exceptions.ClientError as error:
                if error_code(error) == "ValidationError" and "does not exist" in str(error):
                    return None
                raise
        row = described["Stacks"][0]
        if stack_id is None and TAG not in (tag["Key"] for tag in row.get("Tags", ())):
            raise InvalidRequest(
                f"the stack {self.name} was not made by Outrider, which leaves it alone: choose "
                "another name for the target"
            )
        return _read(row)

    def create(self, body: str, parameters: Mapping[str, str]) -> StackState:
        """Start to create the stack. CloudFormation itself removes a stack that fails."""
        with aws_refusals():
            reply = self._client.create_stack(
                StackName=self.name,
                TemplateBody=body,
                Parameters=[
                    {"ParameterKey": key, "ParameterValue": value}
                    for key, value in parameters.items()
                ],
                Capabilities=["CAPABILITY_IAM"],
                OnFailure="DELETE",
                Tags=[{"Key": TAG, "Value": parameters["TargetName"]}],
            )
        return self._present(reply["StackId"])

    def settled(self, state: StackState) -> StackState:
        """Wait until the stack's state is final, and return it."""
        wait = Wait(self.name)
        while state.moving:
            wait.report(state.status.lower().replace("_", " "))
            time.sleep(POLL_SECONDS)
            state = self._present(state.stack_id)
        return state

    def failure(self, state: StackState) -> LaunchFailure:
        """Return the first failure among the stack's events; if none failed, the stack's status."""
        events = self._rows("describe_stack_events", "StackEvents", state)
        for event in reversed(events):  # newest first
            reason = event.get("ResourceStatusReason", "")
            failed = event["ResourceStatus"].endswith("_FAILED")
            if failed and "cancelled" not in reason:
                return LaunchFailure(event["LogicalResourceId"], reason)
        return LaunchFailure(self.name, f"CloudFormation says {state.status}, without a reason")

    def remove(self, state: StackState) -> None:
        """Remove the stack with all its resources. Raises Unavailable if some remain."""
        if state.status != "DELETE_IN_PROGRESS":
            with aws_refusals():
                self._client.delete_stack(StackName=self.name)
            state = self._present(state.stack_id)
        state = self.settled(state)
        if state.status != GONE:
            failed = self.failure(state)
            raise Unavailable(
                f"{self.name} was not removed: {failed.resource}: {failed.reason}; "
                "run `outrider deploy down` again to resume"
            )

    def resources(self, state: StackState) -> list[str]:
        """Return the names of the stack's resources."""
        rows = self._rows("list_stack_resources", "StackResourceSummaries", state)
        return [row["LogicalResourceId"] for row in rows]

    def _rows(self, operation: str, key: str, state: StackState) -> list[Any]:
        return self._aws.rows("cloudformation", operation, key, StackName=state.stack_id)

    def _present(self, stack_id: str) -> StackState:
        state = self.state(stack_id)
        if state is None:
            raise Unavailable(f"CloudFormation does not know {stack_id} any more")
        return state


def stack_names(aws: Aws) -> set[str]:
    """Return the names of all stacks of targets and jobs in the region."""
    rows = aws.rows("cloudformation", "describe_stacks", "Stacks")
    return {row["StackName"] for row in rows if TAG in (tag["Key"] for tag in row.get("Tags", ()))}


def _read(row: Mapping[str, Any]) -> StackState:
    return StackState(
        row["StackId"],
        row["StackStatus"],
        row["CreationTime"],
        {entry["ParameterKey"]: entry["ParameterValue"] for entry in row.get("Parameters", ())},
        {entry["OutputKey"]: entry["OutputValue"] for entry in row.get("Outputs", ())},
    )


TEMPLATE = Path(__file__).parent / "cfn" / "target.yaml"


def read_template() -> dict[str, Any]:
    """Return the template without user data."""
    template: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    return template


def template_body(user_data: str) -> str:
    """Return the template with user data, as JSON."""
    template = read_template()
    launch = template["Resources"]["Launch"]["Properties"]["LaunchTemplateData"]
    launch["UserData"] = {"Fn::Base64": user_data}
    return json.dumps(template)


def stack_parameters(host: Host) -> dict[str, str]:
    """Return the template's parameters except network, bucket and end time."""
    return {
        "TargetName": host.name,
        "InstanceType": host.instance.name,
        "ImageId": host.image_parameter,
        "DiskGiB": str(host.volume_gib),
        "Market": host.market,
        **host.parameters,
    }


def created_resources() -> list[str]:
    """Return the resources that a stack creates, as names with types."""
    resources = read_template()["Resources"]
    return [f"{name} ({resource['Type']})" for name, resource in resources.items()]
