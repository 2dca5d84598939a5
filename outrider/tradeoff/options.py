"""The flags of the trade-off curve: its own, and all that a draft takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from inference.command import add_flag
from inference.cost.objective import read_knob
from inference.errors import InvalidRequest
from outrider import options as drafting
from outrider.options import Options

UNUSED = (
    "baseline",
    "json",
    "profile",
    "calibrate",
    "list_models",
    "max_usd",
    "min_tps",
    "max_usd_per_1m",
    "max_joules_per_token",
    "explain",
)
"""Flags of a draft that mean nothing here."""


@dataclass(frozen=True)
class TradeoffOptions:
    """What is measured, and how; argparse reads the defaults from here. Raises InvalidRequest for
    what cannot be measured.

    draft: how texts are made; its prompts (neither given: four pieces of Python), seed (none given:
    0), prices, watts and objective count. cs: positions of the knob.  target_host: a running
    target; None starts one on this machine.  emulate: the profile whose times that one takes.  rtt:
    milliseconds of a round trip to emulate.
    """

    draft: Options = field(default_factory=Options)
    cs: tuple[str, ...] = ("0", "25", "50", "75", "100")
    num_runs: int = 3
    target_host: str | None = None
    emulate: str | None = None
    rtt: float = 0.0
    out: str | None = None

    def __post_init__(self) -> None:
        weights = [read_knob(knob) for knob in self.cs]
        if (
            len(set(weights)) < 2
            or len(set(weights)) < len(weights)
            or not all(0 <= weight <= 1 for weight in weights)
        ):
            raise InvalidRequest(
                f"--cs {','.join(self.cs)}: two or more different positions are needed, each tps, "
                "balanced, cost or 0 to 100"
            )
        if self.num_runs < 1:
            raise InvalidRequest(f"--num_runs {self.num_runs}: at least one is needed")
        if not 0 <= self.rtt < 60_000:
            raise InvalidRequest(f"--rtt {self.rtt:g}: milliseconds from 0 to 60000 are needed")
        if self.target_host is not None and self.emulate is not None:
            raise InvalidRequest(
                "--emulate is of a target that is started here: --target_host names one that runs"
            )
        if self.draft.waits or self.draft.offline != Options.offline:
            raise InvalidRequest(
                "--cs steers a draft that never waits: leave out --pace wait, --gamma, "
                "--tree_nodes, --tree_depth, --tree_rates and --offline draft"
            )
        unused = [name for name in UNUSED if getattr(self.draft, name) != getattr(Options, name)]
        if unused:
            raise InvalidRequest(f"--{unused[0]} does not go with a trade-off curve")


_add = partial(add_flag, TradeoffOptions)

_EPILOG = """and every flag of `main.py --role draft` that says how texts are made and what they
cost: models, prompts, --objective, --usd_per_hour or --instance, --usd_per_kwh, --draft_watts,
--target_watts, ...

Without --target_host a target is started on this machine and stopped again; draft and target then
share its cores.

examples:
  python -m outrider.tradeoff --usd_per_hour 1.34 --usd_per_kwh 0.3 --usd_per_gb_up 0 \\
    --usd_per_gb_down 0.09 --draft_watts 30 --out DIR
  python -m outrider.tradeoff --emulate llama-3.1-8b-trn1.2xlarge-roofline --rtt 20 \\
    --instance trn1.2xlarge --usd_per_kwh 0.3 --draft_watts 30
  python -m outrider.tradeoff --target_host HOST:PORT --cs 0,50,100 \\
    --objective energy_total --draft_watts 30 --target_watts 400 --out DIR"""


def parse(arguments: Sequence[str] | None = None) -> TradeoffOptions:
    """The options of a command line; prints help or a usage error and exits as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m outrider.tradeoff",
        description=(
            "What each position of --cs costs and brings: tokens a second, dollars and "
            "joules a million tokens, measured side by side."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add(
        parser,
        "cs",
        "positions of the knob (default: 0,25,50,75,100)",
        type=_words,
        metavar="KNOB,...",
    )
    _add(
        parser,
        "num_runs",
        "runs of each prompt and position, interleaved (default: %(default)s)",
        type=int,
    )
    _add(parser, "target_host", "a running target (default: start one here)", metavar="HOST:PORT")
    _add(
        parser,
        "emulate",
        "the passes of the target that is started take the times of this profile",
        metavar="PROFILE",
    )
    _add(
        parser,
        "rtt",
        "round trip to emulate, milliseconds beyond the machine's own (default: %(default)g)",
        type=float,
        metavar="MS",
    )
    _add(parser, "out", "write tradeoff.json, tradeoff.csv and tradeoff.png there", metavar="DIR")
    given, others = parser.parse_known_args(arguments)
    draft = drafting.parse(["--role", "draft", *others])
    try:
        return TradeoffOptions(draft=draft, **vars(given))
    except InvalidRequest as error:
        parser.error(str(error))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
