"""`outrider deploy plan`: what `up` would create, and what that costs. It creates nothing."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt

from deploy.aws import DEFAULT_REGION, Aws
from deploy.commands.options import DeploymentOptions
from deploy.plan_lines import ask_account, find_price, plan_lines
from deploy.served import Speed, computed_speed, read_served
from inference.command import say
from inference.errors import MissingExtra, Unavailable

EXAMPLES = """examples:
  outrider deploy plan demo --instance c7i.2xlarge           the embedded target on CPUs
  outrider deploy plan demo --artifact s3://bucket/artefacts --digest HEX
  outrider deploy plan demo --instance g6.xlarge --model Qwen/Qwen2.5-7B --spot
"""


class PlanOptions(DeploymentOptions, title="plan"):
    """Print what `up` would create, and what that costs. Nothing is created."""

    tokens_per_second: Annotated[float, Gt(0)] | None = None
    """speed for dollars per million tokens (default: computed for Neuron artefacts)"""
    no_live: bool = False
    """ask nobody: the bundled price"""


OPTIONS = PlanOptions


def run(options: PlanOptions) -> int:
    """Print the plan. Returns 0."""
    aws = None if options.no_live else _account(options)
    deployment = options.deployment(aws.region if aws else options.region or DEFAULT_REGION)
    here = aws is not None or deployment.own_artifact is not None
    manifest = read_served(deployment) if here else None
    speed = computed_speed(manifest) if manifest else None
    if options.tokens_per_second is not None:
        speed = Speed(options.tokens_per_second, "as given")
    asked = None if aws is None else ask_account(aws, deployment)
    price = find_price(deployment, live=aws is not None)
    print(*plan_lines(deployment, manifest, asked, price, speed), sep="\n")
    return 0


def _account(options: PlanOptions) -> Aws | None:
    try:
        return options.aws()
    except (MissingExtra, Unavailable) as error:
        say(str(error))
        return None
