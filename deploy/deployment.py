"""The host of a target or a job, and the names of a target's resources in an AWS account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.instance.kind import InstanceKind, Market


@dataclass(frozen=True)
class Host:
    """An instance to start, in a CloudFormation stack of its own."""

    name: str  # of the target or the job
    region: str
    instance: InstanceKind
    market: Market = "on-demand"
    image: str | None = None  # public SSM parameter; None: the default of the instance's kind
    disk_gib: int | None = None  # None: the default of the instance's kind
    lifetime_hours: float = 8.0
    parameters: Mapping[str, str] = field(default_factory=dict)  # additional template parameters

    @property
    def stack(self) -> str:
        return stack_name(self.name)

    @property
    def image_parameter(self) -> str:
        return self.image or self.instance.image

    @property
    def volume_gib(self) -> int:
        return self.disk_gib or self.instance.disk_gib


def stack_name(target: str) -> str:
    """Return the name of a target's CloudFormation stack."""
    return f"outrider-{target}"


def own_bucket(account: str, region: str) -> str:
    """Return the name of the bucket that all targets of an account and region share."""
    return f"outrider-{account}-{region}"


def secret_parameters(target: str) -> tuple[str, str, str]:
    """Return the SSM parameters for a target's certificate, its key and its keys file."""
    return (
        f"/outrider/{target}/certificate",
        f"/outrider/{target}/key",
        f"/outrider/{target}/keys",
    )


def hub_token_parameter(target: str) -> str:
    """Return the SSM parameter for the Hugging Face token, used if a host's model needs one."""
    return f"/outrider/{target}/hub_token"
