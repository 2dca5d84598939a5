"""Runs `python -m deploy prices`: what targets cost on EC2, with source and date."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deploy.prices import InstanceOffer, Price, PriceFile, Pricing, TransferPrice
from deploy.pricing import PriceChain, Unpriced, open_prices
from inference.command import FAILED, Parser, add_flag, run_command
from inference.cost.accounting import hire_usd
from inference.errors import InvalidRequest
from inference.json_file import read_json

_ACCELERATORS = Path(__file__).parent / "data" / "accelerators.json"
_EXAMPLES = """examples:
  python -m deploy prices                          every type that a target may run on, in us-east-1
  python -m deploy prices --instance trn1.2xlarge --pricing spot --region us-west-2
  python -m deploy prices --instance trn1.2xlarge --no_live --tokens_per_second 40
"""


@dataclass(frozen=True)
class PricesOptions:
    """What the user asked for; argparse reads the defaults from here."""

    instance: Sequence[str] | None = None
    region: str = "us-east-1"
    pricing: str | None = None
    price_file: Path | None = None
    no_live: bool = False
    tokens_per_second: float | None = None
    json: bool = False
    debug: bool = False


@dataclass
class PricesShown:
    """The prices that are printed."""

    prices: list[Price] = field(default_factory=list)
    transfer: TransferPrice | None = None
    missing: list[str] = field(default_factory=list)  # what has no price
    reasons: dict[str, None] = field(default_factory=dict)  # why sources were passed over


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when what was asked was done, 1 without a single price."""
    options = _parse(arguments)
    return run_command(lambda: _prices(options), debug=options.debug)


def _prices(options: PricesOptions) -> int:
    speed = options.tokens_per_second
    if speed is not None and not 0 < speed < float("inf"):
        raise InvalidRequest(f"--tokens_per_second is above 0, got {speed}")
    shown = collect(open_prices(options.price_file, live=not options.no_live), options)
    (_print_json if options.json else _print_table)(shown, speed)
    if shown.missing:
        print(f"no price: {', '.join(shown.missing)}", file=sys.stderr)
    for reason in shown.reasons:
        print(f"  {reason}", file=sys.stderr)
    return 0 if shown.prices else FAILED


def accelerators() -> dict[str, str]:
    """The instance types that a target may run on, with their accelerators."""
    return read_json(_ACCELERATORS, InvalidRequest).texts()


def collect(prices: PriceChain, options: PricesOptions) -> PricesShown:
    """The price of each type under the pricing that is asked for. By default these are two prices:
    on demand (else as a capacity block), and spot.
    """
    shown = PricesShown()

    def ask(instance_type: str, pricing: Pricing) -> bool:
        try:
            price, passed_over = prices.quote(InstanceOffer(instance_type, options.region, pricing))
        except Unpriced as error:
            shown.missing.append(f"{instance_type} {pricing.value}")
            shown.reasons |= dict.fromkeys(error.reasons)
            return False
        shown.prices.append(price)
        shown.reasons |= dict.fromkeys(passed_over)
        return True

    for instance_type in options.instance or accelerators():
        if options.pricing is not None:
            ask(instance_type, Pricing(options.pricing))
            continue
        _ = ask(instance_type, Pricing.ON_DEMAND) or ask(instance_type, Pricing.CAPACITY_BLOCK)
        ask(instance_type, Pricing.SPOT)
    try:
        shown.transfer = prices.transfer(options.region)
    except Unpriced as error:
        shown.missing.append("traffic")
        shown.reasons |= dict.fromkeys(error.reasons)
    return shown


def _print_json(shown: PricesShown, tokens_per_second: float | None) -> None:
    """Print a price file, with dollars per million tokens beside the prices, in their order."""
    costs = None
    if tokens_per_second is not None:
        seconds = 1e6 / tokens_per_second
        costs = tuple(hire_usd(seconds, price.usd_per_hour) for price in shown.prices)
    transfers = () if shown.transfer is None else (shown.transfer,)
    print(json.dumps(PriceFile(1, tuple(shown.prices), transfers, costs).plain(), indent=1))


def _print_table(shown: PricesShown, tokens_per_second: float | None) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    extra = [] if tokens_per_second is None else [f"$/M tokens at {tokens_per_second:g}/s"]
    table = Table("instance", "accelerators", "region", "pricing", "$/h", *extra, "as of", "source")
    known = accelerators()
    for price in shown.prices:
        cells = [
            price.instance_type,
            known.get(price.instance_type, ""),
            price.region,
            price.pricing.value,
            f"{price.usd_per_hour:.8g}",
        ]
        if tokens_per_second is not None:
            cells.append(f"{hire_usd(1e6 / tokens_per_second, price.usd_per_hour):.4f}")
        doubt = " (low confidence)" if price.confidence == "low" else ""
        table.add_row(*cells, str(price.as_of), price.source + doubt)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if shown.transfer is not None:
        transfer = shown.transfer
        rates = f"${transfer.usd_per_gb_in:g} a GB in, ${transfer.usd_per_gb_out:g} a GB out"
        said = f"({transfer.source}, {transfer.as_of})"
        print(f"traffic of {transfer.region} with the internet: {rates} {said}")


def _parse(arguments: Sequence[str] | None) -> PricesOptions:
    parser = Parser(prog="python -m deploy", description="Targets on EC2.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prices = commands.add_parser(
        "prices",
        help="print what targets cost, with source and date",
        description=(
            "Prices from --price_file, else from AWS (boto3's credentials), else what AWS "
            "said within a day, else the bundled snapshot."
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = partial(add_flag, PricesOptions, prices)
    add(
        "instance",
        "may be repeated (default: every type that a target may run on)",
        action="append",
        metavar="TYPE",
    )
    add("region", "prices of other regions are never guessed (default: %(default)s)")
    add(
        "pricing",
        "default: on-demand, else capacity-block; and spot",
        choices=[pricing.value for pricing in Pricing],
    )
    add(
        "price_file",
        "your own prices, asked first; its form is that of deploy/data/ec2_prices.json",
        type=Path,
        metavar="FILE",
    )
    add("no_live", "ask neither AWS nor the cache", action="store_true")
    add(
        "tokens_per_second",
        "show dollars per million tokens at this speed, the whole instance being paid",
        type=float,
        metavar="N",
    )
    add("json", "one JSON object on stdout, in the form of a price file", action="store_true")
    add("debug", "show the traceback of an error", action="store_true")
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        prices.error(f"unrecognized arguments: {' '.join(unknown)}")
    return PricesOptions(**vars(given))


if __name__ == "__main__":
    sys.exit(main())
