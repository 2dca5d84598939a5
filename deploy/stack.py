"""A CloudFormation stack: its template, state and creation, why that failed, and its removal."""

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
"""Key of a tag on everything that was made for a target; its value is the target's name."""


Cause = Literal["capacity", "quota", "denied", "image", "other"]
"""The cause of a failed launch."""

_SIGNS: Mapping[Cause, str] = {
    "quota": "VcpuLimit|vCPU limit|InstanceLimitExceeded|MaxSpotInstanceCount|Max spot instance",
    "capacity": (
        "Insufficient(Instance|Host)Capacity|not have sufficient|no Spot capacity|SpotMaxPriceToo"
        "Low|not supported in your requested Availability Zone|ReservationCapacityExceeded"
    ),
    "denied": "not authorized|AccessDenied|UnauthorizedOperation",
    "image": "InvalidAMIID|The image id|Unable to fetch parameters",
}
"""Codes of EC2 and parts of its messages; events of CloudFormation hold either."""


class LaunchFailure(NamedTuple):
    """The resource that failed, and why."""

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
        """Whether all its resources are there."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE")

    @property
    def instance_id(self) -> str | None:
        return self.outputs.get("InstanceId")


class TargetStack:
    """The stack of this name, which may not exist."""

    def __init__(self, aws: Aws, name: str) -> None:
        self.name, self._aws = name, aws
        self._client = aws.client("cloudformation")

    def state(self, stack_id: str | None = None) -> StackState | None:
        """The stack's state; None if there is none.

        stack_id: of one that may have been removed; its last state is kept for months

        Raises InvalidRequest for a stack of this name that Outrider did not make.
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
        """Begin to create it. CloudFormation itself removes a stack that it cannot complete."""
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
        """Wait for the stack's final state, and return it."""
        wait = Wait(self.name)
        while state.moving:
            wait.report(state.status.lower().replace("_", " "))
            time.sleep(POLL_SECONDS)
            state = self._present(state.stack_id)
        return state

    def failure(self, state: StackState) -> LaunchFailure:
        """The first failure among the stack's events; the stack's status where none failed."""
        events = self._rows("describe_stack_events", "StackEvents", state)
        for event in reversed(events):  # the newest comes first
            reason = event.get("ResourceStatusReason", "")
            failed = event["ResourceStatus"].endswith("_FAILED")
            if failed and "cancelled" not in reason:
                return LaunchFailure(event["LogicalResourceId"], reason)
        return LaunchFailure(self.name, f"CloudFormation says {state.status}, without a reason")

    def remove(self, state: StackState) -> None:
        """Remove it with all its resources. Raises Unavailable if something remains."""
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
        """Names of the resources that the stack has."""
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
    """The stacks of all targets and builds of the region."""
    rows = aws.rows("cloudformation", "describe_stacks", "Stacks")
    return {row["StackName"] for row in rows if TAG in (tag["Key"] for tag in row.get("Tags", ()))}


def _read(row: Mapping[str, Any]) -> StackState:
    return StackState(
        row["StackId"],
        row["StackStatus"],
        row["CreationTime"],
        {one["ParameterKey"]: one["ParameterValue"] for one in row.get("Parameters", ())},
        {one["OutputKey"]: one["OutputValue"] for one in row.get("Outputs", ())},
    )


TEMPLATE = Path(__file__).parent / "cfn" / "target.yaml"


def read_template() -> dict[str, Any]:
    """The template without user data."""
    template: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    return template


def template_body(user_data: str) -> str:
    """The template with user data, as JSON."""
    template = read_template()
    launch = template["Resources"]["Launch"]["Properties"]["LaunchTemplateData"]
    launch["UserData"] = {"Fn::Base64": user_data}
    return json.dumps(template)


def stack_parameters(host: Host) -> dict[str, str]:
    """The template's parameters, but for place, bucket and end."""
    return {
        "TargetName": host.name,
        "InstanceType": host.instance.name,
        "ImageId": host.image_parameter,
        "DiskGiB": str(host.volume_gib),
        "Market": host.market,
        **host.parameters,
    }


def created_resources() -> list[str]:
    """Resources that a stack creates: their names and types."""
    resources = read_template()["Resources"]
    return [f"{name} ({resource['Type']})" for name, resource in resources.items()]
