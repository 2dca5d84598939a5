"""Flags of several commands."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, ClassVar, Self

from annotated_types import Ge, Gt, Le
from pydantic import model_validator

from deploy.aws import DEFAULT_REGION, Aws
from deploy.deployment import Deployment
from deploy.instance_kind import InstanceKind, Market
from grpc_comm.client.named_targets import check_name, find_target
from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions
from inference.flags.group import FlagRule, Shown, flags_of
from inference.flags.values import Count, ModelName, Name


class NamedOptions(CommandOptions, title="target"):
    """A target's name and region."""

    BARE: ClassVar = "name"

    name: Name = "target"
    """name of the target, here and in the AWS account"""
    region: Annotated[str, Shown("REGION")] | None = None
    """AWS region (default: the existing target's, else boto3's, else us-east-1)"""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        check_name(self.name)
        return self

    def aws(self) -> Aws:
        """The account, in the target's region. Raises InvalidRequest for another one: what this
        machine keeps of the target belongs to the one that runs.
        """
        known = find_target(self.name)
        if known is None:
            return Aws(self.region)
        if self.region not in (None, known.region):
            raise InvalidRequest(
                f"{self.name} was started in {known.region}: leave out --region {self.region}, or "
                "choose another name"
            )
        return Aws(known.region)


class DeploymentOptions(NamedOptions, title="instance"):
    """A target and the instance that runs it."""

    RULES: ClassVar = (
        FlagRule("spot", excludes="capacity_block", why="they are two ways to pay"),
        FlagRule("artifact", excludes="model", why="both are what is served"),
        FlagRule("private", needs="subnet", why="default subnets have no NAT gateway"),
    )

    instance: Annotated[str, Shown("TYPE")] = "trn1.2xlarge"
    """EC2 type: trn1, trn2, inf2, with NVIDIA GPUs, or with CPUs only"""
    artifact: Annotated[str, Shown("STORE")] | None = None
    """compiled target: s3://BUCKET/PREFIX with --digest, or a directory to upload to --bucket"""
    digest: Annotated[str, Shown("HEX")] | None = None
    """digest of the artefact on S3, which --push printed; for a model on S3 see docs/deploy.md"""
    model: ModelName | None = None
    """model on a CPU or CUDA instance: hub NAME or NAME@REVISION, or s3://BUCKET/PREFIX with
    --digest (default: the embedded target)"""
    spot: bool = False
    """use a spot instance: cheaper, and AWS may end it at any time"""
    capacity_block: Annotated[str, Shown("CR_ID")] | None = None
    """start in this purchased capacity block"""
    subnet: Annotated[str, Shown("SUBNET")] | None = None
    """subnet of the instance (default: the default subnet of each zone in turn)"""
    private: bool = False
    """no public address; --subnet must have a NAT gateway"""
    bucket: Annotated[str, Shown("BUCKET")] | None = None
    """bucket for Outrider's wheel and artefacts (default: that of --artifact, else
    outrider-ACCOUNT-REGION)"""
    image: Annotated[str, Shown("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by instance type)"""
    disk_gib: Annotated[int, Ge(8), Le(16384)] | None = None
    """volume size in GiB (default: 250 for Neuron, 200 for CUDA, 60 for CPU)"""
    port: Annotated[int, Ge(1), Le(65535)] = 50051
    """port of the target on the instance"""
    allow_cidr: Annotated[str, Shown("CIDR")] | None = None
    """allow connections from this network, with TLS and token, in place of a tunnel"""
    idle_minutes: Count = 30
    """shut the instance down after this many minutes without a session"""
    lifetime_hours: Annotated[float, Gt(0), Le(24 * 365)] = 8.0
    """maximum lifetime of the instance"""

    @property
    def market(self) -> Market:
        if self.capacity_block:
            return "capacity-block"
        return "spot" if self.spot else "on-demand"

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        self.deployment(self.region or DEFAULT_REGION)
        return self

    def deployment(self, region: str) -> Deployment:
        same = {field.name for field in fields(Deployment)} & flags_of(type(self)).keys()
        given = {name: value for name, value in self.values().items() if name in same}
        instance = InstanceKind(self.instance)
        return Deployment(**given | {"region": region, "instance": instance, "market": self.market})
