"""Why a stack could not be made, by what CloudFormation says of it, and what to ask AWS for."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from deploy.instance_kind import InstanceKind, Market


class Cause(Enum):
    """What stood in the way."""

    NO_CAPACITY = "no capacity"
    NO_QUOTA = "no quota"
    DENIED = "denied"
    NO_IMAGE = "no image"
    OTHER = "other"


_SIGNS = {
    Cause.NO_QUOTA: (
        "VcpuLimitExceeded",
        "vCPU limit",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "Max spot instance count exceeded",
    ),
    Cause.NO_CAPACITY: (
        "InsufficientInstanceCapacity",
        "not have sufficient",
        "no Spot capacity",
        "SpotMaxPriceTooLow",
        "InsufficientHostCapacity",
        "not supported in your requested Availability Zone",
        "ReservationCapacityExceeded",
    ),
    Cause.DENIED: ("not authorized", "AccessDenied", "UnauthorizedOperation"),
    Cause.NO_IMAGE: ("InvalidAMIID", "The image id", "Unable to fetch parameters"),
}
"""Codes of EC2 and parts of its messages; events of CloudFormation hold either."""


class LaunchFailure(NamedTuple):
    """The resource that failed, and why."""

    resource: str
    reason: str

    @property
    def cause(self) -> Cause:
        for cause, signs in _SIGNS.items():
            if any(sign in self.reason for sign in signs):
                return cause
        return Cause.OTHER


def quota_remedy(
    instance: InstanceKind, market: Market, region: str, virtual_cpus: int, reason: str
) -> str:
    """What to ask AWS for where the quota is too small. The first request of a new account is often
    answered within a day.
    """
    quota = instance.quota(market)
    return (
        f"the account may not run {instance.name} in {region}: its quota {quota.name!r} is too "
        f"small, {virtual_cpus} vCPU more are needed. Ask AWS for them: "
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {quota.code} --desired-value {virtual_cpus} --region {region} "
        f"(AWS said: {reason})"
    )


def capacity_remedy(instance: InstanceKind, market: Market, zones: list[str]) -> str:
    """What to try where no zone has such an instance free."""
    other = {
        "on-demand": "--spot",
        "spot": "without --spot",
        "capacity-block": "the zone of the block (--subnet)",
    }[market]
    return (
        f"AWS has no {instance.name} free ({market}) in {', '.join(zones)}. Try again later, "
        f"another --region, or {other}"
    )
