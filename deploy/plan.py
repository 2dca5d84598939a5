"""What `outrider deploy up` creates, and what that costs. Nothing is created here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deploy.aws import DEFAULT_REGION, Aws
from deploy.commands.options import DeploymentOptions
from deploy.deployment import Deployment, secret_parameters
from deploy.instance_price import InstancePrices, NoPrice, Price, bundled_prices
from deploy.places import SubnetInZone, find_image, places_for
from deploy.served import Speed, computed_speed, read_served
from deploy.stack import created_resources
from inference.artifact import Manifest
from inference.command import say
from inference.cost.billing import hire_usd
from inference.errors import MissingExtra, Unavailable

_ROLE = "what AWS's AmazonSSMManagedInstanceCore allows (Session Manager)"


class AccountView(NamedTuple):
    """The account's answer to a deployment: its number, places to start in, and the image's id."""

    number: str
    places: Sequence[SubnetInZone]
    image_id: str


def dry_run(options: DeploymentOptions) -> Iterator[str]:
    """The plan, line by line. Without credentials AWS is not asked, and the price is the bundled
    one.
    """
    aws = None
    try:
        aws = options.aws()
    except (MissingExtra, Unavailable) as error:
        say(str(error))
    deployment = options.deployment(aws.region if aws else options.region or DEFAULT_REGION)
    here = aws is not None or deployment.own_artifact is not None
    manifest = read_served(deployment) if here else None
    account = None if aws is None else ask_account(aws, deployment)
    price = find_price(deployment, live=aws is not None)
    yield from plan_lines(deployment, manifest, account, price)


def ask_account(aws: Aws, deployment: Deployment) -> AccountView:
    """Ask the account about the deployment. Raises InvalidRequest where it cannot be started."""
    places = places_for(aws, deployment.instance, deployment.subnet)
    return AccountView(aws.account, places, find_image(aws, deployment.image_parameter))


def find_price(deployment: Deployment, *, live: bool) -> Price | NoPrice:
    """The price of an hour of the instance, or the reason why it is not known."""
    try:
        prices = InstancePrices(live=live)
        return prices.find(deployment.instance.name, deployment.region, deployment.market)
    except NoPrice as error:
        return error


def plan_lines(
    deployment: Deployment,
    manifest: Manifest | None,
    account: AccountView | None,
    price: Price | NoPrice,
) -> Iterator[str]:
    """The plan, line by line.

    account: None where there are no credentials, so that nothing could be asked
    """
    instance, number = deployment.instance, account.number if account else "ACCOUNT"
    image = f" = {account.image_id}" if account else ""
    bundled = bundled_prices().types.get(instance.name)
    device, bucket = (
        bundled.accelerators if bundled else instance.kind,
        deployment.bucket_name(number),
    )
    told = {
        "target": f"{deployment.name}, stack {deployment.stack} in {deployment.region}",
        "instance": f"{instance.name} ({device}), {deployment.market}",
        "zones": ", ".join(place.zone for place in account.places) if account else "",
        "image": f"{deployment.image_parameter}{image}",
        "volume": f"{deployment.volume_gib} GiB gp3, encrypted, deleted with the instance",
        "artefact": _served(deployment, manifest),
        "bucket": f"s3://{bucket} for Outrider's wheel and artefacts; it is kept at `down`",
        "role": f"{_ROLE}; reads s3://{bucket} and its own secrets",
        "ports": _ports(deployment),
        "secrets": (
            f"{', '.join(secret_parameters(deployment.name))}: deleted when the host has them"
        ),
        "ends": (
            f"after {deployment.idle_minutes} min without a session (--idle_minutes), "
            f"after {deployment.lifetime_hours:g} h in any case (--lifetime_hours)"
        ),
        "creates": ", ".join(created_resources()),
        **_costs(deployment, price, computed_speed(manifest) if manifest else None),
    }
    yield from (f"{label:<12}{text}" for label, text in told.items() if text)
    if account is None:
        yield "AWS was not asked: zones, image, artefact on S3 and prices of today are not checked"


def _served(deployment: Deployment, manifest: Manifest | None) -> str:
    if manifest is not None:
        return f"{manifest.model} for {manifest.target}, digest {manifest.digest()}"
    if deployment.artifact is not None:
        return f"{deployment.artifact}, digest {deployment.digest}"
    return f"none; the host serves {deployment.model or 'the embedded target'}"


def _ports(deployment: Deployment) -> str:
    if deployment.allow_cidr is None:
        address = ", which has no public address" if deployment.private else ""
        return f"none; a tunnel leads to {deployment.port} on the host{address}"
    return f"{deployment.port} for {deployment.allow_cidr}, with TLS and a key; no SSH"


def _costs(deployment: Deployment, price: Price | NoPrice, speed: Speed | None) -> dict[str, str]:
    if isinstance(price, NoPrice):
        return {"$/h": str(price)}
    usd = price.usd_per_hour
    most = usd * deployment.lifetime_hours
    tokens = ""
    if speed is not None:
        million = hire_usd(1e6 / speed.tokens_per_second, usd)
        tokens = f"{million:.4f} at {speed.tokens_per_second:.4g} tokens/s ({speed.source})"
    return {
        "$/h": f"{price}; volume, address and traffic are not in it",
        "at most": f"${most:.2f} for the instance until its lifetime ends",
        "$/M tokens": tokens,
    }
