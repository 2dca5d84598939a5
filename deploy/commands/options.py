"""Flags that several verbs have."""

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
    """The target that is meant, and its region."""

    BARE: ClassVar = "name"

    name: Name = "target"
    """what the target is called here and in the account"""
    region: Annotated[str, Shown("REGION")] | None = None
    """AWS region (default: the named target's, else that of boto3's configuration, else
    us-east-1)"""

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
    """The target that is to run, and the instance that it runs on."""

    RULES: ClassVar = (
        FlagRule("spot", excludes="capacity_block", why="they are two ways to pay"),
        FlagRule("artifact", excludes="model", why="both are what is served"),
        FlagRule("private", needs="subnet", why="default subnets have no NAT gateway"),
    )

    instance: Annotated[str, Shown("TYPE")] = "trn1.2xlarge"
    """EC2 type: trn1, trn2, inf2, one with NVIDIA's GPUs, or one with CPUs alone"""
    artifact: Annotated[str, Shown("STORE")] | None = None
    """compiled target: s3://BUCKET/PREFIX with --digest, or a directory, which is pushed to
    --bucket"""
    digest: Annotated[str, Shown("HEX")] | None = None
    """of the artefact on S3, as --push printed it; of a model on S3: docs/deploy.md"""
    model: ModelName | None = None
    """what a CPU or CUDA instance serves: NAME or NAME@REVISION of the hub, or s3://BUCKET/PREFIX
    with --digest (default: the embedded target)"""
    spot: bool = False
    """cheaper, and AWS may end it at any time"""
    capacity_block: Annotated[str, Shown("CR_ID")] | None = None
    """start in this capacity block, which you bought"""
    subnet: Annotated[str, Shown("SUBNET")] | None = None
    """start here (default: the default subnets of all zones, one after the other)"""
    private: bool = False
    """without a public address: in a --subnet with a NAT gateway"""
    bucket: Annotated[str, Shown("BUCKET")] | None = None
    """bucket for Outrider's wheel and artefacts (default: the artefact's, else
    outrider-ACCOUNT-REGION)"""
    image: Annotated[str, Shown("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by the instance's kind)"""
    disk_gib: Annotated[int, Ge(8), Le(16384)] | None = None
    """size of the volume (default: 250 for Neuron, 200 for CUDA, 60 for CPU)"""
    port: Annotated[int, Ge(1), Le(65535)] = 50051
    """port of the target on its host"""
    allow_cidr: Annotated[str, Shown("CIDR")] | None = None
    """open the port to this network, with TLS and key, in place of a tunnel"""
    idle_minutes: Count = 30
    """without a session for so long, the host ends itself"""
    lifetime_hours: Annotated[float, Gt(0), Le(24 * 365)] = 8.0
    """after so long the host ends itself, whatever it does"""

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
