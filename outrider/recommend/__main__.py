"""Runs `outrider recommend`: which draft suits this machine and a target."""

from __future__ import annotations

from collections.abc import Sequence

from inference.command import run_command
from inference.flags.command_line import parse_flags
from outrider.recommend.recommend_options import RecommendOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb. Returns 0 when it recommends a command."""
    options = parse_flags(RecommendOptions, "outrider recommend", arguments)

    from outrider.recommend.advice import recommend  # needs models, which help does not

    return run_command(lambda: recommend(options), debug=options.debug)
