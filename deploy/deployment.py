"""The request of `outrider deploy up`: one target, and where and how it is to run."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compile.plan.device import device_of
from deploy.host.user_data import METRICS_PORT
from deploy.instance_kind import InstanceKind, Market, check_image
from inference.artifact import read_manifest
from inference.errors import InvalidRequest

BUILDER = "r7i.4xlarge"
"""Instance type with the memory that a compiler of a model of some billion parameters needs."""

_PREFIX = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Deployment:
    """One target. Raises InvalidRequest for what cannot be."""

    name: str
    region: str
    instance: InstanceKind
    purpose: Literal["target", "build"] = "target"  # a build's host also writes to the bucket
    market: Market = "on-demand"
    capacity_block: str | None = None  # id of the reservation that was bought
    artifact: str | None = None  # s3://BUCKET/PREFIX, or a directory here
    digest: str | None = None  # of the artefact or model on S3
    model: str | None = None  # NAME or NAME@REVISION of the hub, or s3://BUCKET/PREFIX
    store: str = "artefacts/"  # prefixes of the bucket that a build's host may write to
    graphs: str = "graphs/"
    disk_gib: int | None = None  # None: what the instance's kind needs
    image: str | None = None  # public SSM parameter; None: that of the instance's kind
    subnet: str | None = None
    private: bool = False  # without a public address
    bucket: str | None = None
    allow_cidr: str | None = None  # network that may call the port; None: a tunnel leads there
    port: int = 50051
    idle_minutes: int = 30
    lifetime_hours: float = 8.0

    def __post_init__(self) -> None:
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
        if self.port == METRICS_PORT:
            raise InvalidRequest(f"--port {self.port} is that of the metrics: take another one")
        if self.purpose == "target":
            check_image(self.instance.compile_target, self.image)
        compiled_only = self.instance.kind == "neuron" and self.purpose == "target"
        if compiled_only and self.artifact is None:
            raise InvalidRequest(
                f"{self.instance.name} serves compiled targets only: give --artifact. `"
                f"{build_command(self.instance, self.model)}` builds one on AWS and prints what "
                "--artifact and --digest are (--dry_run says its price first). CPU and CUDA "
                "instances need none: --instance c7i.2xlarge, --instance g6.xlarge"
            )
        if (self.market == "capacity-block") != (self.capacity_block is not None):
            raise InvalidRequest("--capacity_block names the block that was bought (cr-...)")
        _check_cidr(self.allow_cidr)

    @property
    def stack(self) -> str:
        return stack_name(self.name)

    @property
    def image_parameter(self) -> str:
        return self.image or self.instance.image

    @property
    def volume_gib(self) -> int:
        return self.disk_gib or self.instance.disk_gib

    @property
    def on_s3(self) -> str | None:
        """The artefact or model on S3 that is served."""
        named = (self.artifact, self.model)
        return next((one for one in named if one is not None and one.startswith("s3://")), None)

    @property
    def own_artifact(self) -> Path | None:
        """The directory of an artefact that lies here and is to be pushed."""
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

    def bucket_name(self, account: str) -> str:
        """The bucket that the host may read: the given one, that of what it serves, or the
        account's.
        """
        if self.bucket is None and self.on_s3 is not None:
            return self.on_s3.removeprefix("s3://").partition("/")[0]
        return self.bucket or own_bucket(account, self.region)


def build_command(instance: InstanceKind, model: str | None) -> str:
    """The command that builds an artefact for all cores of the instance, on AWS."""
    cores = device_of(instance.compile_target).instances.get(instance.name, 1)
    return (
        f"outrider compile --on {BUILDER} --model {model or 'HUB_NAME'} "
        f"--target {instance.compile_target} --tensor_parallel {cores}"
    )


def stack_name(target: str) -> str:
    """The CloudFormation stack of a target."""
    return f"outrider-{target}"


def own_bucket(account: str, region: str) -> str:
    """The bucket that all targets of an account and region share."""
    return f"outrider-{account}-{region}"


def secret_parameters(target: str) -> tuple[str, str, str]:
    """The parameters that carry a target's certificate, key and keys file to its host."""
    return (
        f"/outrider/{target}/certificate",
        f"/outrider/{target}/key",
        f"/outrider/{target}/keys",
    )


def hub_token_parameter(target: str) -> str:
    """The parameter that carries this machine's token of the hub to a host whose model needs it."""
    return f"/outrider/{target}/hub_token"


def _check_cidr(cidr: str | None) -> None:
    """Raises InvalidRequest for a network that cannot be opened to, or that is the whole world."""
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
