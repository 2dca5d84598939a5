"""Flags of several commands, and the checks of their combinations."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, ClassVar, Self

from annotated_types import Ge, Gt, Le
from pydantic import model_validator

from compile.aws import Aws
from compile.plan.memory import device_of
from deploy.bucket import own_bucket
from deploy.instance import Host, InstanceKind, Market, check_image
from grpc_comm.client.named_targets import check_name, find_target
from inference.errors import InvalidRequest
from inference.files.artifact import read_manifest
from inference.flags.command_line import CommandOptions
from inference.flags.group import FlagRule, Metavar
from inference.flags.values import Count, File, ModelName, Name

BUILDER = "r7i.4xlarge"
"""Instance type with enough memory to compile a model of a few billion parameters."""

_PREFIX = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class NamedOptions(CommandOptions, title="target"):
    """A target's name and region."""

    BARE: ClassVar = "name"

    name: Name = "target"
    """name of the target, on this machine and in the AWS account"""
    region: Annotated[str, Metavar("REGION")] | None = None
    """AWS region (default: the existing target's, else boto3's, else us-east-1)"""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        check_name(self.name)
        return self

    def aws(self) -> Aws:
        """Return the AWS account in the target's region. Raises InvalidRequest if --region differs
        from the region of a running target with this name.
        """
        registered = find_target(self.name)
        if registered is None:
            return Aws(self.region)
        if self.region not in (None, registered.region):
            raise InvalidRequest(
                f"{self.name} was started in {registered.region}: leave out --region "
                f"{self.region}, or choose another name"
            )
        return Aws(registered.region)


class UpOptions(NamedOptions, title="start"):
    """Start a target on AWS as a CloudFormation stack. Run the same command again to continue after
    an interruption; `outrider deploy down` removes everything.
    """

    COMMON: ClassVar = (
        *("name", "region", "instance", "model", "artifact", "digest", "spot", "allow_cidr"),
        *("idle_minutes", "lifetime_hours", "disk_gib", "dry_run", "yes"),
    )
    RULES: ClassVar = (
        FlagRule("spot", excludes="capacity_block", why="they are two ways to pay"),
        FlagRule("artifact", excludes="model", why="both are what is served"),
        FlagRule("private", needs="subnet", why="default subnets have no NAT gateway"),
    )

    instance: Annotated[str, Metavar("TYPE")] = "trn1.2xlarge"
    """EC2 instance type: trn1, trn2, inf2, or a type with NVIDIA GPUs or only CPUs"""
    artifact: Annotated[str, Metavar("STORE")] | None = None
    """compiled target: s3://BUCKET/PREFIX with --digest, or a directory to upload to --bucket"""
    digest: Annotated[str, Metavar("HEX")] | None = None
    """digest of the artefact on S3, as printed by --push; for a model on S3 see docs/deploy.md"""
    model: ModelName | None = None
    """model on a CPU or CUDA instance: hub NAME or NAME@REVISION, or s3://BUCKET/PREFIX with
    --digest (default: the embedded target)"""
    spot: bool = False
    """use a spot instance: cheaper, and AWS may end it at any time"""
    capacity_block: Annotated[str, Metavar("CR_ID")] | None = None
    """purchased capacity block to start the instance in"""
    subnet: Annotated[str, Metavar("SUBNET")] | None = None
    """subnet of the instance (default: the default subnet of each zone in turn)"""
    private: bool = False
    """give the instance no public address; --subnet must have a NAT gateway"""
    bucket: Annotated[str, Metavar("BUCKET")] | None = None
    """bucket for Outrider's wheel and artefacts (default: that of --artifact, else
    outrider-ACCOUNT-REGION)"""
    image: Annotated[str, Metavar("PARAMETER")] | None = None
    """public SSM parameter of the machine image (default: by instance type)"""
    disk_gib: Annotated[int, Ge(8), Le(16384)] | None = None
    """volume size in GiB (default: 250 for Neuron, 200 for CUDA, 60 for CPU)"""
    allow_cidr: Annotated[str, Metavar("CIDR")] | None = None
    """network that may connect directly, with TLS and token, instead of through a tunnel"""
    idle_minutes: Count = 30
    """shut the instance down after this many minutes without a session"""
    lifetime_hours: Annotated[float, Gt(0), Le(24 * 365)] = 8.0
    """maximum lifetime of the instance"""
    wheel: File | None = None
    """Outrider wheel to install on the instance (default: built from this checkout)"""
    yes: bool = False
    """do not ask for confirmation; required if stdin is not a terminal"""
    dry_run: bool = False
    """print the resources and their cost, and start nothing"""

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.on_s3 is not None and self.digest is None:
            raise InvalidRequest(
                f"{self.on_s3} needs --digest: of an artefact, the one that --push printed; of a "
                "model, what the command of docs/deploy.md prints. Nothing is taken on trust"
            )
        if self.digest is not None and self.on_s3 is None:
            raise InvalidRequest("--digest is of an --artifact or --model s3://BUCKET/PREFIX")
        if self.on_s3 is not None and not _PREFIX.fullmatch(self.on_s3):
            raise InvalidRequest(
                f"{self.on_s3}: s3://BUCKET/PREFIX is needed, with a bucket of 3 to 63 lowercase "
                "letters, digits, dots and hyphens"
            )
        if self.digest is not None and not _SHA256.fullmatch(self.digest):
            raise InvalidRequest(f"--digest {self.digest}: 64 hexadecimal digits are needed")
        check_image(self.kind.compile_target, self.image)
        if self.kind.kind == "neuron" and self.artifact is None:
            raise InvalidRequest(
                f"{self.instance} serves compiled targets only: give --artifact. `"
                f"{build_command(self.kind, self.model)}` builds one on AWS and prints what "
                "--artifact and --digest are (--dry_run says its price first). CPU and CUDA "
                "instances need none: --instance c7i.2xlarge, --instance g6.xlarge"
            )
        _check_cidr(self.allow_cidr)
        return self

    @property
    def kind(self) -> InstanceKind:
        return InstanceKind(self.instance)

    @property
    def market(self) -> Market:
        if self.capacity_block:
            return "capacity-block"
        return "spot" if self.spot else "on-demand"

    @property
    def on_s3(self) -> str | None:
        """URL of the artefact or model on S3 to serve; None if it is not on S3."""
        sources = (self.artifact, self.model)
        return next((url for url in sources if url is not None and url.startswith("s3://")), None)

    @property
    def own_artifact(self) -> Path | None:
        """Local directory of the artefact to upload; None if it is on S3 or absent."""
        if self.artifact is None or self.artifact.startswith("s3://"):
            return None
        return Path(self.artifact)

    @property
    def served(self) -> str:
        """Digest of the artefact, or name of the model. Raises BadArtifact for a directory without
        an artefact.
        """
        if self.own_artifact is not None:
            return read_manifest(self.own_artifact).digest()
        return self.digest or self.model or "embedded target"

    def bucket_name(self, account: str, region: str) -> str:
        """Return the bucket that the host may read: --bucket, the artefact's, or the account's."""
        if self.bucket is None and self.on_s3 is not None:
            return self.on_s3.removeprefix("s3://").partition("/")[0]
        return self.bucket or own_bucket(account, region)

    def host(self, region: str) -> Host:
        """Return the host to start. Raises BadArtifact for a directory without an artefact."""
        parameters = {
            "AllowCidr": self.allow_cidr or "",
            "Private": str(self.private).lower(),
            "CapacityReservation": self.capacity_block or "",
            "Served": self.served,
        }
        return Host(
            self.name,
            region,
            self.kind,
            self.market,
            self.image or self.kind.image,
            self.disk_gib or self.kind.disk_gib,
            self.lifetime_hours,
            parameters,
        )


def build_command(instance: InstanceKind, model: str | None) -> str:
    """Return the command that builds, on AWS, an artefact for all cores of the instance."""
    cores = device_of(instance.compile_target).instances.get(instance.name, 1)
    return (
        f"outrider compile --on {BUILDER} --model {model or 'HUB_NAME'} "
        f"--target {instance.compile_target} --tensor_parallel {cores}"
    )


def _check_cidr(cidr: str | None) -> None:
    if cidr is None:
        return
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise InvalidRequest(
            f"--allow_cidr {cidr}: a network such as 203.0.113.7/32 is needed ({error})"
        ) from error
    if network.prefixlen == 0:
        raise InvalidRequest(
            f"--allow_cidr {cidr} opens the target to everybody: name the networks that call it"
        )
