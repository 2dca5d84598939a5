"""Plans of targets and jobs: what is started and served, checked against the account and the
instance, and the cost. Nothing is created by this module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compile.aws import Aws
from compile.plan.device import device_of
from compile.spec import CompileSpec
from compile.store import fetch_manifest, open_store
from deploy.commands.options import UpOptions
from deploy.deployment import Host, secret_parameters
from deploy.host.user_data import PORT
from deploy.instance.places import SubnetInZone, find_image, places_for
from deploy.instance.price import InstancePrices, NoPrice, Price, bundled_prices
from deploy.stack import created_resources
from inference.cost.billing import hire_usd
from inference.errors import InvalidRequest
from inference.files.artifact import Manifest, read_manifest
from inference.model.checkpoints.config import parse_config

_ROLE = "what AWS's AmazonSSMManagedInstanceCore allows (Session Manager)"


class AccountView(NamedTuple):
    """An AWS account as a plan sees it: its number, usable subnets, and the machine image's id."""

    number: str
    places: Sequence[SubnetInZone]
    image_id: str


def ask_account(aws: Aws, host: Host, subnet: str | None = None) -> AccountView:
    """Query where the host can be started. Raises InvalidRequest if it cannot."""
    places = places_for(aws, host.instance, subnet)
    return AccountView(aws.account, places, find_image(aws, host.image_parameter))


def find_price(host: Host, *, live: bool = True) -> Price | NoPrice:
    """Return the host's hourly price, or the reason why it is not known."""
    try:
        return InstancePrices(live=live).find(host.instance.name, host.region, host.market)
    except NoPrice as error:
        return error


def host_rows(host: Host, account: AccountView | None) -> dict[str, str]:
    """Return rows of a plan: the instance, its zones, image and volume."""
    bundled = bundled_prices().types.get(host.instance.name)
    device = bundled.accelerators if bundled else host.instance.kind
    image = f" = {account.image_id}" if account else ""
    return {
        "instance": f"{host.instance.name}, {host.market} ({device})",
        "zones": ", ".join(place.zone for place in account.places) if account else "",
        "image": f"{host.image_parameter}{image}",
        "volume": f"{host.volume_gib} GiB gp3, encrypted, deleted with the instance",
    }


def cost_rows(host: Host, price: Price | NoPrice) -> dict[str, str]:
    """Return rows of a plan: the hourly price, and the maximum cost."""
    if isinstance(price, NoPrice):
        return {"$/h": str(price)}
    maximum = price.usd_per_hour * host.lifetime_hours
    return {
        "$/h": f"{price}; volume, address and traffic are not in it",
        "at most": f"${maximum:.2f} for the instance until its lifetime ends",
    }


def plan_text(rows: Mapping[str, str]) -> str:
    """Format the rows of a plan, without empty ones."""
    return "\n".join(f"{label:<12}{text}" for label, text in rows.items() if text)


class Plan(NamedTuple):
    """A target and its host, with the answers from AWS."""

    options: UpOptions
    host: Host
    manifest: Manifest | None  # None for a model, and for an artefact on S3 without credentials
    account: AccountView | None  # None if there are no credentials
    price: Price | NoPrice  # hourly, or the reason why it is not known

    def __str__(self) -> str:
        options, host, account = self.options, self.host, self.account
        bucket = options.bucket_name(account.number if account else "ACCOUNT", host.region)
        rows = {
            "target": f"{host.name}, stack {host.stack} in {host.region}",
            **host_rows(host, account),
            "artefact": _served(options, self.manifest),
            "bucket": f"s3://{bucket} for Outrider's wheel and artefacts; it is kept at `down`",
            "role": f"{_ROLE}; reads s3://{bucket} and its own secrets",
            "ports": _ports(options),
            "secrets": (
                f"{', '.join(secret_parameters(host.name))}: deleted when the host has them"
            ),
            "ends": (
                f"after {options.idle_minutes} min without a session (--idle_minutes), "
                f"after {options.lifetime_hours:g} h in any case (--lifetime_hours)"
            ),
            "creates": ", ".join(created_resources()),
            **cost_rows(host, self.price),
            "$/M tokens": _token_cost(self),
        }
        if account is None:
            rows["AWS"] = "not queried: zones, image, artefact on S3 and prices are not checked"
        return plan_text(rows)


def make_plan(options: UpOptions, host: Host, aws: Aws | None) -> Plan:
    """Make the plan of a target; without credentials, with bundled prices and no checks by AWS.
    Raises InvalidRequest if the target cannot be started or served.
    """
    account = None if aws is None else ask_account(aws, host, options.subnet)
    manifest = read_served(options) if account or options.own_artifact else None
    return Plan(options, host, manifest, account, find_price(host, live=aws is not None))


def _served(options: UpOptions, manifest: Manifest | None) -> str:
    if manifest is not None:
        return f"{manifest.model} for {manifest.target}, digest {manifest.digest()}"
    if options.artifact is not None:
        return f"{options.artifact}, digest {options.digest}"
    return f"none; the host serves {options.model or 'the embedded target'}"


def _ports(options: UpOptions) -> str:
    if options.allow_cidr is None:
        address = ", which has no public address" if options.private else ""
        return f"none; a tunnel leads to {PORT} on the host{address}"
    return f"{PORT} for {options.allow_cidr}, with TLS and a key; no SSH"


def _token_cost(plan: Plan) -> str:
    speed = computed_speed(plan.manifest) if plan.manifest else None
    if speed is None or isinstance(plan.price, NoPrice):
        return ""
    million = hire_usd(1e6 / speed.tokens_per_second, plan.price.usd_per_hour)
    return f"{million:.4f} at {speed.tokens_per_second:.4g} tokens/s ({speed.source})"


class Speed(NamedTuple):
    """Tokens per second of all rows together, and the source of the figure."""

    tokens_per_second: float
    source: str


def read_served(options: UpOptions) -> Manifest | None:
    """Return the manifest of the target's artefact; None if it serves a model. On S3, no other file
    of the artefact is downloaded.

    Raises InvalidRequest if the instance cannot serve it.
    """
    if options.artifact is None:
        return None
    if options.own_artifact is not None:
        manifest = read_manifest(options.own_artifact)
    else:
        with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
            store, digest = open_store(options.artifact), options.digest or ""
            manifest = fetch_manifest(store, digest, Path(directory))
    instance = options.kind
    if manifest.target != instance.compile_target:
        raise InvalidRequest(
            f"the artefact of {manifest.model} is for {manifest.target}, {instance.name} is "
            f"{instance.compile_target}"
        )
    ranks = device_of(manifest.target).instances.get(instance.name)
    if ranks is not None and manifest.tensor_parallel > ranks:
        raise InvalidRequest(
            f"the artefact of {manifest.model} takes {manifest.tensor_parallel} cores, "
            f"{instance.name} has {ranks}"
        )
    return manifest


def computed_speed(manifest: Manifest) -> Speed | None:
    """Return tokens per second if no candidate is accepted, for the artefact's root-only graph with
    the most rows. None for a CPU, and if the published figures only allow a range.
    """
    from compile.plan.pass_seconds import pass_seconds
    from compile.plan.plan_report import basis

    graphs = [bucket for bucket in manifest.buckets if bucket.everywhere]
    bucket = max(graphs, key=lambda bucket: (-bucket.nodes, bucket.rows, -bucket.slots))
    spec = CompileSpec.of(manifest)
    time = pass_seconds(parse_config(manifest.config), spec, bucket)
    if time is None or time.seconds is None:
        return None
    load = f"{bucket.rows} texts at once, nothing drafted, {time} a forward pass"
    return Speed(bucket.rows / time.seconds, f"{load}; {basis(spec)}")
