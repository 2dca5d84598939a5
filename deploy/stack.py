"""CloudFormation stacks of hosts: template, state, removal, and the start in the first zone with
capacity.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from compile.aws import Aws, aws_refusals, error_code
from deploy.ec2 import SubnetInZone, describe_instance, host_size
from deploy.instance import Host
from inference.command import say
from inference.errors import InvalidRequest, OutriderError, Unavailable

TEMPLATE = Path(__file__).parent / "cfn" / "target.yaml"
POLL_SECONDS = 3.0
TAG = "outrider:target"
"""Key of the tag on all resources of a target; its value is the target's name."""

_MINUTE = 60.0
_OTHER_WAYS = {
    "on-demand": "--spot",
    "spot": "without --spot",
    "capacity-block": "the zone of the block (--subnet)",
}
"""What to try if no zone has capacity, by how the instance is bought."""

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


class Wait:
    """Progress while waiting for AWS. name: of the resource"""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self._words, self._due = "", 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def report(self, words: str) -> None:
        """Print the current state if it is new or was last printed a minute ago."""
        if words != self._words or self.seconds >= self._due:
            say(f"{self._name}: {words}, {self.seconds:.0f} s")
            self._words, self._due = words, self.seconds + _MINUTE


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
        return StackState(
            row["StackId"],
            row["StackStatus"],
            {entry["ParameterKey"]: entry["ParameterValue"] for entry in row.get("Parameters", ())},
            {entry["OutputKey"]: entry["OutputValue"] for entry in row.get("Outputs", ())},
        )

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
        events = self._aws.rows(
            "cloudformation", "describe_stack_events", "StackEvents", StackName=state.stack_id
        )
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
        if state.status != "DELETE_COMPLETE":
            failed = self.failure(state)
            raise Unavailable(
                f"{self.name} was not removed: {failed.resource}: {failed.reason}; "
                "run `outrider deploy down` again to resume"
            )

    def _present(self, stack_id: str) -> StackState:
        state = self.state(stack_id)
        if state is None:
            raise Unavailable(f"CloudFormation does not know {stack_id} any more")
        return state


def stack_names(aws: Aws) -> set[str]:
    """Return the names of all stacks of targets and jobs in the region."""
    rows = aws.rows("cloudformation", "describe_stacks", "Stacks")
    return {row["StackName"] for row in rows if TAG in (tag["Key"] for tag in row.get("Tags", ()))}


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


def running_stack(aws: Aws, host: Host) -> StackState | None:
    """Return the stack of an earlier start if its instance runs; otherwise remove what is left of
    it. Raises InvalidRequest if the instance has other settings.
    """
    stack = TargetStack(aws, host.stack)
    state = stack.state()
    if state is None:
        return None
    state = stack.settled(state)
    if state.whole and state.instance_id is not None:
        _check_same(host, state)
        instance = describe_instance(aws, state.instance_id)
        if instance is not None and instance.alive:
            say(f"{stack.name} already runs: continuing")
            return state
    say(f"{stack.name} is {state.status} without a running instance: removing it")
    stack.remove(state)
    return None


def _check_same(host: Host, state: StackState) -> None:
    for key in ("InstanceType", "AllowCidr", "Private", "Market", "Served"):
        present, value = state.parameters.get(key), host.template_parameters.get(key, "")
        if present != value:
            raise InvalidRequest(
                f"{host.stack} runs with {key} {present or 'none'}, and {value or 'none'} is "
                f"requested: `outrider deploy down {host.name}` first, or choose another name"
            )


def start_stack(
    aws: Aws, host: Host, places: Sequence[SubnetInZone], user_data: str, bucket: str
) -> StackState:
    """Start the host's stack in the first of these subnets whose zone has capacity."""
    stack, body, instance = TargetStack(aws, host.stack), template_body(user_data), host.instance
    for place in places:
        say(f"starting {instance.name} in {place.zone}")
        ends_at = datetime.now(UTC) + timedelta(hours=host.lifetime_hours)
        parameters = host.template_parameters | {
            "VpcId": place.vpc,
            "SubnetId": place.subnet,
            "Bucket": bucket,
            "EndsAt": ends_at.strftime("%Y-%m-%dT%H:%MZ"),
        }
        state = stack.settled(stack.create(body, parameters))
        if state.whole:
            return state
        failure = stack.failure(state)
        if failure.cause != "capacity":
            raise _refusal(aws, host, failure)
        say(f"{place.zone} has no {instance.name} free")
    zones = ", ".join(place.zone for place in places)
    raise Unavailable(
        f"AWS has no {instance.name} free ({host.market}) in {zones}. Try again later, another "
        f"--region, or {_OTHER_WAYS[host.market]}"
    )


def _refusal(aws: Aws, host: Host, failure: LaunchFailure) -> OutriderError:
    resource, reason = failure
    match failure.cause:
        case "quota":
            name, quota = host.instance.name, host.instance.quota(host.market)
            cpus = host_size(aws, name).vcpus
            return InvalidRequest(
                f"the account may not run {name} in {host.region}: its quota {quota.name!r} "
                f"is too small, {cpus} vCPU more are needed. Ask AWS for them: "
                "aws service-quotas request-service-quota-increase --service-code ec2 "
                f"--quota-code {quota.code} --desired-value {cpus} --region {host.region} "
                f"(AWS said: {reason})"
            )
        case "denied":
            return InvalidRequest(
                f"AWS denies {resource} to these credentials: {reason}; docs/deploy.md lists what "
                "they must be allowed"
            )
        case "image":
            return InvalidRequest(f"the machine image of {host.image} cannot be used: {reason}")
    return Unavailable(f"{host.stack} could not be created: {resource}: {reason}")
