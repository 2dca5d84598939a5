"""`outrider deploy doctor`: whether an account can run a target, and this machine can reach it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from deploy.aws import Aws, aws_refusals
from deploy.instance_kind import InstanceKind, Market, check_image
from deploy.instance_types import find_type
from deploy.launch_failures import quota_request
from deploy.places import find_image, offered_zones
from deploy.tunnel import PLUGIN
from inference.errors import OutriderError
from outrider.doctor.findings import Finding, fault, refused, show, warning
from outrider.options.group import Shown
from outrider.options.verb import VerbOptions

EXAMPLES = """examples:
  outrider deploy doctor                                   for a trn1.2xlarge on demand
  outrider deploy doctor --instance g6.xlarge --region eu-west-1 --json
"""


class DoctorOptions(VerbOptions, title="account"):
    """Credentials, region, image, quota, and what a tunnel needs here. Nothing is created."""

    instance: Annotated[str, Shown("TYPE")] = "trn1.2xlarge"
    """instance type that is to be run"""
    region: Annotated[str, Shown("REGION")] | None = None
    """AWS region (default: that of boto3's configuration, else us-east-1)"""
    spot: bool = False
    """as a spot instance"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""

    @property
    def market(self) -> Market:
        return "spot" if self.spot else "on-demand"


OPTIONS = DoctorOptions


def run(options: DoctorOptions) -> int:
    """Print the findings. Returns 1 where one of them is a fault."""
    return show(_findings(options), as_json=options.as_json)


def _findings(options: DoctorOptions) -> Iterator[Finding]:
    instance = InstanceKind(options.instance)
    yield _plugin()
    try:
        aws = Aws(options.region)
        yield Finding("credentials", f"of account {aws.account}")
    except OutriderError as error:
        yield refused("credentials", error)
        return
    checks = {"region": _zones, "image": _image, "quota": _quota}
    for subject, check in checks.items():
        try:
            yield check(aws, instance, options.market)
        except OutriderError as error:
            yield refused(subject, error)


def _plugin() -> Finding:
    if shutil.which(PLUGIN):
        return Finding("tunnel", f"{PLUGIN} is installed")
    remedy = "install AWS's Session Manager plugin, or open the port with up --allow_cidr"
    return fault("tunnel", f"{PLUGIN} is not on PATH", remedy)


def _zones(aws: Aws, instance: InstanceKind, _market: Market) -> Finding:
    zones = ", ".join(offered_zones(aws, instance))
    return Finding("region", f"{aws.region} has {instance.name} in {zones}")


def _image(aws: Aws, instance: InstanceKind, _market: Market) -> Finding:
    check_image(instance.compile_target, None)
    return Finding("image", f"{instance.image} is {find_image(aws, instance.image)}")


def _quota(aws: Aws, instance: InstanceKind, market: Market) -> Finding:
    """The account's limit in virtual CPUs. A quota that AWS does not tell is no fault."""
    quota = instance.quota(market)
    need = find_type(aws, instance.name).vcpus
    ask = quota_request(quota, aws.region, need)
    try:
        with aws_refusals():
            said = aws.client("service-quotas").get_service_quota(
                ServiceCode="ec2", QuotaCode=quota.code
            )
    except OutriderError as error:
        return warning(
            "quota", f"{quota.name!r} cannot be read: {error}", f"where it is too small: {ask}"
        )
    value = float(said["Quota"]["Value"])
    text = f"{quota.name!r} is {value:g} vCPU, {instance.name} has {need}"
    return Finding("quota", text) if value >= need else fault("quota", text, ask)
