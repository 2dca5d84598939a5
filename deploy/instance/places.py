"""Subnets in which an instance can be started, in zones that offer its type."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from compile.aws import Aws, aws_refusals, error_code
from deploy.deployment import Host
from deploy.instance.kind import NEURON_BASE_IMAGE, NEURON_IMAGE, InstanceKind
from inference.command import say
from inference.errors import InvalidRequest


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
    client = aws.client("ec2")
    with aws_refusals():
        try:
            (row,) = client.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
        except client.exceptions.ClientError as error:
            if error_code(error) != "InvalidInstanceType":
                raise
            raise InvalidRequest(f"{aws.region} has no instance type {name}") from error
    return HostSize(row["VCpuInfo"]["DefaultVCpus"], row["MemoryInfo"]["SizeInMiB"] / 1024)


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
    if host.image_parameter != NEURON_IMAGE:
        return host
    try:
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
