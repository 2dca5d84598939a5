"""Plans of targets and jobs: what is started and served, checked against the account and the
instance, and the cost. Nothing is created by this module.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compile.aws import Aws
from compile.plan.memory import device_of
from compile.spec import CompileSpec
from compile.store import fetch_manifest, open_store
from deploy.commands.options import UpOptions
from deploy.ec2 import SubnetInZone, find_image, places_for
from deploy.handover import secret_parameters
from deploy.host.user_data import PORT
from deploy.instance import Host
from deploy.prices import InstancePrices, NoPrice, Price, bundled_prices
from deploy.stack import read_template
from inference.cost.billing import hire_usd
from inference.errors import InvalidRequest
from inference.files.artifact import Manifest, read_manifest
from inference.model.checkpoints.config import parse_config

_ROLE = "what AWS's AmazonSSMManagedInstanceCore allows (Session Manager)"


class Offer(NamedTuple):
    """The zones, machine image and hourly price of a host that AWS can start. Without credentials
    only the price is set, if it is among the bundled ones.
    """

    host: Host
    price: Price | NoPrice  # hourly, or the reason why it is not known
    account: str = ""  # number
    places: Sequence[SubnetInZone] = ()
    image_id: str = ""

    def rows(self) -> dict[str, str]:
        """Return rows of a plan: the instance, its zones, image, volume and cost."""
        host, price = self.host, self.price
        bundled = bundled_prices().types.get(host.instance.name)
        device = bundled.accelerators if bundled else host.instance.kind
        rows = {
            "instance": f"{host.instance.name}, {host.market} ({device})",
            "zones": ", ".join(place.zone for place in self.places),
            "image": f"{host.image} = {self.image_id}" if self.image_id else host.image,
            "volume": f"{host.disk_gib} GiB gp3, encrypted, deleted with the instance",
        }
        if isinstance(price, NoPrice):
            return rows | {"$/h": str(price)}
        maximum = price.usd_per_hour * host.lifetime_hours
        return rows | {
            "$/h": f"{price}; volume, address and traffic are not in it",
            "at most": f"${maximum:.2f} for the instance until its lifetime ends",
        }


def ask_aws(aws: Aws | None, host: Host, subnet: str | None = None) -> Offer:
    """Query where the host can be started, and its price; without credentials, the bundled price.
    Raises InvalidRequest if it cannot be started.
    """
    price: Price | NoPrice
    try:
        prices = InstancePrices(live=aws is not None)
        price = prices.find(host.instance.name, host.region, host.market)
    except NoPrice as error:
        price = error
    if aws is None:
        return Offer(host, price)
    places = places_for(aws, host.instance, subnet)
    return Offer(host, price, aws.account, places, find_image(aws, host.image))


def plan_text(rows: Mapping[str, str]) -> str:
    """Format the rows of a plan, without empty ones."""
    return "\n".join(f"{label:<12}{text}" for label, text in rows.items() if text)


def ask() -> bool:
    """Ask whether to start and pay. Raises InvalidRequest if stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "nothing was started: cannot ask, stdin is not a terminal; --yes starts"
        )
    return input("start this? [y/N] ").strip().lower() in ("y", "yes")


def target_plan(options: UpOptions, offer: Offer) -> str:
    """Return the plan of a target. Raises InvalidRequest if the instance cannot serve it."""
    host = offer.host
    manifest = read_served(options) if offer.account or options.own_artifact else None
    served = f"none; the host serves {options.model or 'the embedded target'}"
    if manifest is not None:
        served = f"{manifest.model} for {manifest.target}, digest {manifest.digest()}"
    elif options.artifact is not None:
        served = f"{options.artifact}, digest {options.digest}"
    bucket = options.bucket_name(offer.account or "ACCOUNT", host.region)
    resources = read_template()["Resources"].items()
    rows = {
        "target": f"{host.name}, stack {host.stack} in {host.region}",
        **offer.rows(),
        "artefact": served,
        "bucket": f"s3://{bucket} for Outrider's wheel and artefacts; it is kept at `down`",
        "role": f"{_ROLE}; reads s3://{bucket} and its own secrets",
        "ports": _ports(options),
        "secrets": f"{', '.join(secret_parameters(host.name))}: deleted when the host has them",
        "ends": (
            f"after {options.idle_minutes} min without a session (--idle_minutes), "
            f"after {options.lifetime_hours:g} h in any case (--lifetime_hours)"
        ),
        "creates": ", ".join(f"{name} ({resource['Type']})" for name, resource in resources),
        "$/M tokens": _token_cost(manifest, offer.price),
    }
    if not offer.account:
        rows["AWS"] = "not queried: zones, image, artefact on S3 and prices are not checked"
    return plan_text(rows)


def _ports(options: UpOptions) -> str:
    if options.allow_cidr is None:
        address = ", which has no public address" if options.private else ""
        return f"none; a tunnel leads to {PORT} on the host{address}"
    return f"{PORT} for {options.allow_cidr}, with TLS and a key; no SSH"


def _token_cost(manifest: Manifest | None, price: Price | NoPrice) -> str:
    speed = computed_speed(manifest) if manifest else None
    if speed is None or isinstance(price, NoPrice):
        return ""
    million = hire_usd(1e6 / speed.tokens_per_second, price.usd_per_hour)
    return f"{million:.4f} at {speed.tokens_per_second:.4g} tokens/s ({speed.source})"


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


class Speed(NamedTuple):
    """Tokens per second of all rows together, and the source of the figure."""

    tokens_per_second: float
    source: str


def computed_speed(manifest: Manifest) -> Speed | None:
    """Return tokens per second if no candidate is accepted, for the artefact's root-only graph with
    the most rows. None for a CPU, and if the published figures only allow a range.
    """
    from compile.plan.report import basis, pass_seconds

    graphs = [bucket for bucket in manifest.buckets if bucket.everywhere]
    bucket = max(graphs, key=lambda bucket: (-bucket.nodes, bucket.rows, -bucket.slots))
    spec = CompileSpec.of(manifest)
    time = pass_seconds(parse_config(manifest.config), spec, bucket)
    if time is None or time.seconds is None:
        return None
    load = f"{bucket.rows} texts at once, nothing drafted, {time} a forward pass"
    return Speed(bucket.rows / time.seconds, f"{load}; {basis(spec)}")
