"""The host of a target or a job, and the names of what a target has in an AWS account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.instance.kind import InstanceKind, Market


@dataclass(frozen=True)
class Host:
    """An instance to start, with a stack of its own."""

    name: str  # of the target or job
    region: str
    instance: InstanceKind
    market: Market = "on-demand"
    image: str | None = None  # public SSM parameter; None: that of the instance's kind
    disk_gib: int | None = None  # None: what the instance's kind needs
    lifetime_hours: float = 8.0
    parameters: Mapping[str, str] = field(default_factory=dict)  # further ones of the template

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
