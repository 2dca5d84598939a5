"""The table of `python -m deploy prices`: every price with its source and day, and why others
are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.price import Offer, Price, Pricing, TransferPrice
from deploy.price_table import SCHEMA, price_row, transfer_row
from deploy.pricing import Prices, Unpriced
from inference.cost.accounting import hire_usd
from inference.errors import InvalidRequest
from inference.json_file import read_json

_ACCELERATORS = Path(__file__).parent / "data" / "accelerators.json"


@dataclass(frozen=True)
class Shown:
    """What the table holds; `missing` has no price, and `reasons` are those of sources that were
    passed over.
    """

    prices: tuple[Price, ...]
    transfer: TransferPrice | None
    missing: tuple[str, ...]
    reasons: tuple[str, ...]


def accelerators() -> dict[str, str]:
    """The instance types that a target may run on, and what accelerators they have."""
    return read_json(_ACCELERATORS, InvalidRequest).texts()


def collect(
    prices: Prices, region: str, instance_types: Sequence[str], pricings: Sequence[Pricing]
) -> Shown:
    """The price of each type under each pricing; under none of them named, on demand or else as
    a capacity block, and as spot.
    """
    found: list[Price] = []
    missing: list[str] = []
    reasons: dict[str, None] = {}

    def ask(instance_type: str, pricing: Pricing) -> bool:
        try:
            price, passed_over = prices.quote(Offer(instance_type, region, pricing))
        except Unpriced as error:
            missing.append(f"{instance_type} {pricing.value}")
            reasons.update(dict.fromkeys(error.reasons))
            return False
        found.append(price)
        reasons.update(dict.fromkeys(passed_over))
        return True

    for instance_type in instance_types:
        for pricing in pricings:
            ask(instance_type, pricing)
        if not pricings:
            _ = ask(instance_type, Pricing.ON_DEMAND) or ask(instance_type, Pricing.CAPACITY_BLOCK)
            ask(instance_type, Pricing.SPOT)
    try:
        transfer = prices.transfer(region)
    except Unpriced as error:
        missing.append("traffic")
        reasons.update(dict.fromkeys(error.reasons))
        transfer = None
    return Shown(tuple(found), transfer, tuple(missing), tuple(reasons))


def print_json(shown: Shown, tokens_per_second: float | None) -> None:
    """A price file on stdout, with dollars per million tokens beside the prices, in their order;
    reasons on stderr.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "prices": [price_row(price) for price in shown.prices],
    }
    content["transfers"] = [] if shown.transfer is None else [transfer_row(shown.transfer)]
    if tokens_per_second is not None:
        content["usd_per_million_tokens"] = [
            hire_usd(1e6 / tokens_per_second, price.usd_per_hour) for price in shown.prices
        ]
    print(json.dumps(content, indent=1))
    _print_reasons(shown)


def print_table(shown: Shown, tokens_per_second: float | None) -> None:
    """For people, on stdout; reasons on stderr."""
    from rich.console import Console
    from rich.table import Table

    extra = [] if tokens_per_second is None else [f"$/M tokens at {tokens_per_second:g}/s"]
    table = Table("instance", "accelerators", "region", "pricing", "$/h", *extra, "as of", "source")
    known = accelerators()
    for price in shown.prices:
        offer, doubt = price.offer, " (low confidence)" if price.confidence == "low" else ""
        cost = (
            []
            if tokens_per_second is None
            else [f"{hire_usd(1e6 / tokens_per_second, price.usd_per_hour):.4f}"]
        )
        cells = [
            offer.instance_type,
            known.get(offer.instance_type, ""),
            offer.region,
            offer.pricing.value,
            f"{price.usd_per_hour:.8g}",
        ]
        table.add_row(*cells, *cost, str(price.as_of), price.source + doubt)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if shown.transfer is not None:
        transfer = shown.transfer
        rates = f"${transfer.usd_per_gb_in:g} a GB in, ${transfer.usd_per_gb_out:g} a GB out"
        print(
            f"traffic of {transfer.region} with the internet: {rates} ({transfer.source}, "
            f"{transfer.as_of})"
        )
    _print_reasons(shown)


def _print_reasons(shown: Shown) -> None:
    if shown.missing:
        print(f"no price: {', '.join(shown.missing)}", file=sys.stderr)
    for reason in shown.reasons:
        print(f"  {reason}", file=sys.stderr)
