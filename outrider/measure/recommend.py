"""Runs `outrider recommend`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from inference.command import run_command
from inference.flags.command_line import parse_flags
from outrider.measure.recommend_options import RecommendOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb. Returns 0 when it recommends a command."""
    options = parse_flags(RecommendOptions, "outrider recommend", arguments)
    advice = import_module("outrider.measure.advice")  # needs models, which help does not
    return run_command(lambda: int(advice.recommend(options)), debug=options.debug)
