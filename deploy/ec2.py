"""EC2 as hosts use it: sizes of instance types, subnets in zones that offer a type, machine images,
running instances, and their progress by AWS Systems Manager, which needs no open port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from compile.aws import Aws, aws_refusals
from deploy.instance import NEURON_BASE_IMAGE, NEURON_IMAGE, Host, InstanceKind, Market
from inference.command import say
from inference.errors import InvalidRequest, Unavailable

_ALIVE = ("pending", "running")
_MARKETS: dict[str, Market] = {"spot": "spot", "capacity-block": "capacity-block"}
# as in "User initiated (2026-11-22 14:00:00 GMT)"
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")

_POLL_SECONDS = 1
_MAX_SECONDS = 60
_UNDER_WAY = ("Pending", "InProgress", "Delayed")

PROGRESS = (
    "systemctl is-active outrider-target.service; "
    "grep '^outrider setup:' /var/log/cloud-init-output.log | tail -n 1; true"
)
"""Prints two lines: the state of the systemd unit, and the last step of the host's setup."""


class SubnetInZone(NamedTuple):
    """A subnet in a zone."""

    zone: str
    subnet: str
    vpc: str


class HostSize(NamedTuple):
    """The number of processors and the memory of an instance type."""

    vcpus: int
    memory_gib: float


def host_size(aws: Aws, name: str) -> HostSize:
    """Return the size of an instance type as EC2 describes it. Raises InvalidRequest for an unknown
    type.
    """
    only = [{"Name": "instance-type", "Values": [name]}]
    for row in aws.rows("ec2", "describe_instance_types", "InstanceTypes", Filters=only):
        return HostSize(row["VCpuInfo"]["DefaultVCpus"], row["MemoryInfo"]["SizeInMiB"] / 1024)
    raise InvalidRequest(f"{aws.region} has no instance type {name}")


def places_for(aws: Aws, instance: InstanceKind, subnet: str | None) -> list[SubnetInZone]:
    """Return the subnets in which to try to start the instance, ordered by zone.

    subnet: the only one to try; None for the default subnets of the region's zones

    Raises InvalidRequest if no subnet is suitable.
    """
    offered = _offered_zones(aws, instance)
    query: dict[str, object] = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    if subnet is not None:
        query = {"SubnetIds": [subnet]}
    subnets = aws.rows("ec2", "describe_subnets", "Subnets", **query)
    candidates = sorted(
        SubnetInZone(row["AvailabilityZone"], row["SubnetId"], row["VpcId"]) for row in subnets
    )
    places = [place for place in candidates if place.zone in offered]
    if not candidates:
        raise InvalidRequest(
            f"the account has no default network in {aws.region}: `aws ec2 create-default-vpc` "
            "makes one, or --subnet names a subnet with a way to the internet"
        )
    if not places:
        zones = ", ".join(sorted({place.zone for place in candidates}))
        raise InvalidRequest(
            f"{instance.name} is offered in {', '.join(offered)} only, and the subnets "
            f"are in {zones}: give --subnet in one of those"
        )
    return places


def _offered_zones(aws: Aws, instance: InstanceKind) -> list[str]:
    """Return the zones that offer the instance, sorted. Raises InvalidRequest if no zone does or
    EC2 does not know the type.
    """
    rows = aws.rows(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [instance.name]}],
    )
    if not rows:
        if instance.kind == "neuron":
            where = "trn1 is in us-east-1, us-east-2 and us-west-2"
        else:
            where = "or the name is misspelt"
        raise InvalidRequest(
            f"{instance.name} is not offered in {aws.region}: try another --region ({where})"
        )
    return sorted(row["Location"] for row in rows)


def with_image(aws: Aws, host: Host) -> Host:
    """Return the host. If AWS's Neuron image no longer exists, use the base image, on which the
    host installs AWS's packages itself.
    """
    try:
        if host.image == NEURON_IMAGE:
            find_image(aws, NEURON_IMAGE)
    except InvalidRequest as error:
        say(f"starting from {NEURON_BASE_IMAGE}: {error}")
        return replace(host, image=NEURON_BASE_IMAGE)
    return host


def find_image(aws: Aws, parameter: str) -> str:
    """Return the id of the machine image in a public parameter. Raises InvalidRequest if the
    parameter does not exist, listing those that do.
    """
    client = aws.client("ssm")
    with aws_refusals():
        try:
            return str(client.get_parameter(Name=parameter)["Parameter"]["Value"])
        except client.exceptions.ParameterNotFound as error:
            family = parameter.split("/latest/")[0].rpartition("/")[0] or "/"
            rows = aws.rows(
                "ssm", "get_parameters_by_path", "Parameters", Path=family, Recursive=True
            )
            parameters = sorted(row["Name"] for row in rows)
            near = f"; below {family} there are: {', '.join(parameters[:6])}" if parameters else ""
            base_image = f" (for Neuron {NEURON_BASE_IMAGE})" if "/neuron/" in parameter else ""
            raise InvalidRequest(
                f"the machine image is gone: {aws.region} has no parameter {parameter}{near}. "
                f"--image names another one{base_image}; docs/deploy.md says what it must hold"
            ) from error


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
    only = [{"Name": "instance-id", "Values": [instance_id]}]
    reservations = aws.rows("ec2", "describe_instances", "Reservations", Filters=only)
    if not reservations:
        return None
    (row,) = reservations[0]["Instances"]
    ended = _WHEN.search(row.get("StateTransitionReason", ""))
    return RunningInstance(
        instance_id,
        row["InstanceType"],
        row["State"]["Name"],
        row["Placement"]["AvailabilityZone"],
        row.get("PublicIpAddress") or row.get("PrivateIpAddress", ""),
        row["LaunchTime"],
        {tag["Key"]: tag["Value"] for tag in row.get("Tags", ())},
        row.get("StateReason", {}).get("Message", ""),
        datetime.fromisoformat(f"{ended[1]}+00:00") if ended else None,
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
