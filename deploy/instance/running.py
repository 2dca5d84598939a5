"""A target's instance as EC2 describes it, and commands on it by AWS Systems Manager, which needs
no open port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from compile.aws import Aws, aws_refusals, error_code
from deploy.instance.kind import Market
from inference.errors import Unavailable

_ALIVE = ("pending", "running")
_MARKETS: dict[str, Market] = {"spot": "spot", "capacity-block": "capacity-block"}
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")

_POLL_SECONDS = 1
_MAX_SECONDS = 60
_UNDER_WAY = ("Pending", "InProgress", "Delayed")

PROGRESS = (
    "systemctl is-active outrider-target.service; "
    "grep '^outrider setup:' /var/log/cloud-init-output.log | tail -n 1; true"
)
"""Prints two lines: the state of the systemd unit, and the last step of the host's setup."""


@dataclass(frozen=True)
class RunningInstance:
    """An instance, running or ended."""

    instance_id: str
    type: str
    state: str
    zone: str
    address: str  # IPv4: public if there is one, otherwise private; empty once it has ended
    launched: datetime
    tags: Mapping[str, str]
    ended_by: str  # EC2's reason why it ended; empty while it runs
    ended: datetime | None = None  # if EC2 reports a time

    @property
    def alive(self) -> bool:
        return self.state in _ALIVE

    @property
    def market(self) -> Market:
        """How the instance is bought: on demand, spot or as a capacity block."""
        return _MARKETS.get(self.tags.get("outrider:market", ""), "on-demand")

    @property
    def ends_at(self) -> str | None:
        """The time (UTC) at which the host powers itself off; None if it has no such tag."""
        return self.tags.get("outrider:ends")


def describe_instance(aws: Aws, instance_id: str) -> RunningInstance | None:
    """Return a description of the instance; None if EC2 no longer knows it."""
    client = aws.client("ec2")
    with aws_refusals():
        try:
            reply = client.describe_instances(InstanceIds=[instance_id])
        except client.exceptions.ClientError as error:
            if error_code(error) == "InvalidInstanceID.NotFound":
                return None
            raise
    row = reply["Reservations"][0]["Instances"][0]
    return RunningInstance(
        instance_id,
        row["InstanceType"],
        row["State"]["Name"],
        row["Placement"]["AvailabilityZone"],
        row.get("PublicIpAddress") or row.get("PrivateIpAddress", ""),
        row["LaunchTime"],
        {tag["Key"]: tag["Value"] for tag in row.get("Tags", ())},
        row.get("StateReason", {}).get("Message", ""),
        _time_in(row.get("StateTransitionReason", "")),
    )


class InstanceEnded(Unavailable):
    """The instance is no longer running."""


def living_instance(aws: Aws, instance_id: str) -> RunningInstance:
    """Return a running instance. Raises InstanceEnded with the reason if it has ended."""
    instance = describe_instance(aws, instance_id)
    if instance is None or not instance.alive:
        why = instance.ended_by if instance else "EC2 has forgotten it"
        raise InstanceEnded(f"the instance {instance_id} ended: {why}")
    return instance


def _time_in(reason: str) -> datetime | None:
    """Return the time in a text such as "User initiated (2026-11-22 14:00:00 GMT)"."""
    match = _WHEN.search(reason)
    if match is None:
        return None
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


class HostProgress(NamedTuple):
    """Progress of a host: whether it serves or has failed, and descriptions of state and step."""

    serving: bool
    failed: bool
    words: str


def run_on_host(aws: Aws, instance_id: str, command: str) -> str:
    """Run a command on the host and return its output. Raises Unavailable if the host does not
    answer (the SSM agent needs a minute or two to start), or if the command fails.
    """
    from botocore.exceptions import WaiterError

    client = aws.client("ssm")
    with aws_refusals():
        try:
            sent = client.send_command(
                InstanceIds=[instance_id],
                DocumentName="AWS-RunShellScript",
                Parameters={"commands": [command], "executionTimeout": [str(_MAX_SECONDS)]},
            )
        except client.exceptions.InvalidInstanceId as error:
            raise Unavailable(
                f"{instance_id} does not answer yet: Systems Manager does not know it"
            ) from error
    sent_to = {"CommandId": sent["Command"]["CommandId"], "InstanceId": instance_id}
    polling = {"Delay": _POLL_SECONDS, "MaxAttempts": _MAX_SECONDS // _POLL_SECONDS}
    with aws_refusals():
        with suppress(WaiterError):  # a failed command, too: see its status
            client.get_waiter("command_executed").wait(**sent_to, WaiterConfig=polling)
        invocation = client.get_command_invocation(**sent_to)
    if invocation["Status"] in _UNDER_WAY:
        raise Unavailable(f"{instance_id} did not answer within {_MAX_SECONDS} s")
    if invocation["Status"] != "Success":
        reason = invocation.get("StandardErrorContent", "").strip() or invocation["Status"]
        raise Unavailable(f"{instance_id}: the command failed: {reason}")
    return str(invocation["StandardOutputContent"])


def progress(aws: Aws, instance_id: str) -> HostProgress:
    """Return the host's progress. Raises Unavailable if the host does not answer."""
    state, _, setup = run_on_host(aws, instance_id, PROGRESS).strip().partition("\n")
    step = setup.removeprefix("outrider setup:").strip()
    failed = "FAILED" in step or state == "failed"
    return HostProgress(state == "active", failed, f"{state}; setup: {step or 'not started'}")
