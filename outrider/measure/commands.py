"""The commands that measure. Each reads its flags, whose help needs no models, and then imports
what runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from inference.command import run_command
from inference.extras import require
from inference.flags.command_line import CommandOptions, parse_flags
from outrider.measure import options as flags

Words = Sequence[str] | None
"""A command line; None: that of this process."""

COMPARE = """Without --target_host a target is started on this machine. Draft and target then share
its cores: forward passes, acceptance and bytes carry over to other machines, tokens/s do not.

examples:
  outrider compare                                       the embedded pair
  outrider compare --target_model DIR --draft_model DIR  a real pair
  outrider compare --rtt 0,20,80 --out DIR --emulate llama-3.1-8b-trn1.2xlarge-measured
  outrider compare --target_host HOST --draft_model DIR \\
    --tls_ca ca.pem --token_file token
  outrider compare --cs 0,25,50,75,100 --usd_per_hour 1.34 \\
    --usd_per_kwh 0.3 --usd_per_gb_up 0 --usd_per_gb_down 0.09 --draft_watts 30"""

BENCH = """examples:
  outrider bench --yes                                    the embedded pair and prompts
  outrider bench --yes --target_model DIR --draft_model DIR --out real
  outrider bench --set small --presets hybrid,suffix --rtt 40 --samples 5
  outrider bench --target_host HOST --draft_model DIR --file prompts.jsonl --out server"""

PROVE = """examples:
  outrider prove                                         the embedded pair
  outrider prove --target_model DIR --draft_model DIR    a real pair on this machine
  outrider prove --model NAME --device neuron            on a Neuron instance, where noise and
                                                         sampling of the device are checked first"""


def parse_compare(words: Words = None) -> flags.CompareOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    return parse_flags(flags.CompareOptions, "outrider compare", words, COMPARE)


def parse_bench(words: Words = None) -> flags.BenchOptions:
    return parse_flags(flags.BenchOptions, "outrider bench", words, BENCH)


def parse_prove(words: Words = None) -> flags.ProveOptions:
    return parse_flags(flags.ProveOptions, "outrider prove", words, PROVE)


def parse_recommend(words: Words = None) -> flags.RecommendOptions:
    return parse_flags(flags.RecommendOptions, "outrider recommend", words)


def compare(words: Words = None) -> int:
    """Run `outrider compare`. Returns 0 when the comparison was made."""
    return _run(parse_compare(words), "compare", needs_torch=True)


def bench(words: Words = None) -> int:
    """Run `outrider bench`. Returns 0 when all was measured."""
    return _run(parse_bench(words), "bench")


def prove(words: Words = None) -> int:
    """Run `outrider prove`. Returns 0 if all texts are equal, else 1."""
    return _run(parse_prove(words), "prove", needs_torch=True)


def recommend(words: Words = None) -> int:
    """Run `outrider recommend`. Returns 0 when it recommends a command."""
    return _run(parse_recommend(words), "recommend")


def runs(words: Words = None) -> int:
    """Run `outrider runs`. Returns 0 when all texts of all runs were generated."""
    from outrider.measure.runs import EXAMPLES, RunsOptions

    return _run(parse_flags(RunsOptions, "outrider runs", words, EXAMPLES), "runs")


def _run(options: CommandOptions, command: str, *, needs_torch: bool = False) -> int:
    def work() -> int:
        if needs_torch:
            require("torch", f"outrider {command}")
        module: Any = import_module(f"outrider.measure.{command}")
        return int(module.run(options))

    return run_command(work, debug=options.debug)
