"""The commands that measure. Each reads its flags, whose help needs no models, and then imports
what runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from inference.command import run_command
from inference.extras import require
from inference.flags.command_line import CommandOptions, parse_flags

Words = Sequence[str] | None
"""A command line; None: that of this process."""


def compare(arguments: Words = None) -> int:
    """Run `outrider compare`. Returns 0 when the comparison was made."""
    from outrider.measure.compare_options import parse

    return _run(parse(arguments), "outrider.measure.compare:run_comparison", needs_torch=True)


def bench(arguments: Words = None) -> int:
    """Run `outrider bench` or `outrider bench compare`. Returns 0 when all was measured."""
    from outrider.measure.bench_options import PairingOptions, parse

    options = parse(sys.argv[1:] if arguments is None else arguments)
    if isinstance(options, PairingOptions):
        return _run(options, "outrider.measure.two_runs:compare_runs")
    return _run(options, "outrider.measure.bench:run_bench")


def prove(arguments: Words = None) -> int:
    """Run `outrider prove`. Returns 0 if all texts are equal, else 1."""
    from outrider.measure.prove_options import parse

    return _run(parse(arguments), "outrider.measure.prove:run_proof", needs_torch=True)


def recommend(arguments: Words = None) -> int:
    """Run `outrider recommend`. Returns 0 when it recommends a command."""
    from outrider.measure.recommend_options import RecommendOptions

    options = parse_flags(RecommendOptions, "outrider recommend", arguments)
    return _run(options, "outrider.measure.recommend:recommend")


def runs(arguments: Words = None) -> int:
    """Run `outrider runs`. Returns 0 when all texts of all runs were made."""
    from outrider.measure.runs import EXAMPLES, RunsOptions, make_runs

    words = sys.argv[1:] if arguments is None else arguments
    options = parse_flags(RunsOptions, "outrider runs", words, EXAMPLES)
    return run_command(lambda: make_runs(options), debug=options.debug)


def _run(options: CommandOptions, program: str, *, needs_torch: bool = False) -> int:
    module, _, function = program.partition(":")

    def work() -> int:
        if needs_torch:
            require("torch", f"outrider {module.rpartition('.')[2]}")
        run: Any = getattr(import_module(module), function)
        return int(run(options))

    return run_command(work, debug=options.debug)
