"""python -m deploy prices: what targets cost on EC2, by which source, as of when."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.price import Pricing
from inference.command import FAILED, run_command
from inference.errors import InvalidRequest

_EXAMPLES = """examples:
  python -m deploy prices                          every type that a target may run on, in us-east-1
  python -m deploy prices --instance trn1.2xlarge --pricing spot --region us-west-2
  python -m deploy prices --instance trn1.2xlarge --no_live --tokens_per_second 40
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when what was asked was done; 1 without a single price."""
    options = _parse(arguments)
    return run_command(lambda: _prices(options), debug=options.debug)


def _prices(options: argparse.Namespace) -> int:
    from deploy.pricing import open_prices
    from deploy.show_prices import accelerators, collect, print_json, print_table

    if options.tokens_per_second is not None and not 0 < options.tokens_per_second < float("inf"):
        raise InvalidRequest(f"--tokens_per_second is above 0, got {options.tokens_per_second}")
    prices = open_prices(options.price_file, live=not options.no_live)
    pricings = [Pricing(options.pricing)] if options.pricing else []
    shown = collect(prices, options.region, options.instance or list(accelerators()), pricings)
    (print_json if options.json else print_table)(shown, options.tokens_per_second)
    return 0 if shown.prices else FAILED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description="Targets on EC2.", allow_abbrev=False
    )
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
    _flag(
        prices,
        "instance",
        "may be repeated (default: every type that a target may run on)",
        action="append",
        metavar="TYPE",
    )
    _flag(
        prices,
        "region",
        "prices of other regions are never guessed (default: %(default)s)",
        default="us-east-1",
    )
    _flag(
        prices,
        "pricing",
        "default: on-demand, else capacity-block; and spot",
        choices=[pricing.value for pricing in Pricing],
    )
    _flag(
        prices,
        "price_file",
        "your own prices, asked first; its form is that of deploy/data/ec2_prices.json",
        type=Path,
        metavar="FILE",
    )
    _flag(prices, "no_live", "ask neither AWS nor the cache", action="store_true")
    _flag(
        prices,
        "tokens_per_second",
        "show dollars per million tokens at this speed, the whole instance being paid",
        type=float,
        metavar="N",
    )
    _flag(
        prices,
        "json",
        "one JSON object on stdout, in the form of a price file",
        action="store_true",
    )
    _flag(prices, "debug", "show the traceback of an error", action="store_true")
    return parser.parse_args(arguments)


def _flag(parser: argparse.ArgumentParser, name: str, text: str, **settings: object) -> None:
    """A flag under its underscore and its dash spelling."""
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(*spellings, dest=name, help=text, **settings)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
