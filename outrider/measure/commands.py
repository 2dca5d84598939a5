"""The measuring commands. Each parses its flags before it imports torch and its own code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from inference.command import run_command
from inference.errors import require
from inference.flags.command_line import CommandOptions, parse_flags
from outrider.measure.verbs import options as flags

Words = Sequence[str] | None
"""Arguments of a command; None for the arguments of this process."""

COMPARE = """Without --target_host a target is started on this machine. Draft and target then share
its cores: forward passes, acceptance and bytes carry over to other machines, tokens/s do not.

examples:
  outrider compare                                       the embedded pair
  outrider compare --target_model DIR --draft_model DIR  a real pair
  outrider compare --rtt 0,20,80 --out DIR --emulate llama-3.1-8b-trn1.2xlarge-measured
  outrider compare --target_host HOST --draft_model DIR \\
    --tls_ca ca.pem --token_file token"""

BENCH = """examples:
  outrider bench                                          the embedded pair and prompts
  outrider bench --target_model DIR --draft_model DIR --out real
  outrider bench --preset hybrid,suffix --rtt 40 --samples 5
  outrider bench --target_host HOST --draft_model DIR --file prompts.jsonl --out server"""

PROVE = """examples:
  outrider prove                                         the embedded pair
  outrider prove --target_model DIR --draft_model DIR    a real pair on this machine
  outrider prove --model NAME --device neuron            on a Neuron instance, where noise and
                                                         sampling of the device are checked first"""


RUNS = """examples:
  outrider runs runs.yaml --dry_run       list the runs of the file
  outrider runs runs.yaml --out results
  outrider runs experiment.xml            an experiment of AutoDraft
  outrider --config results/NAME/outrider-options.json
                                          repeat one of them"""

COMMANDS: dict[str, tuple[type[CommandOptions], str, str]] = {
    "compare": (flags.CompareOptions, COMPARE, "bench:compare"),
    "bench": (flags.BenchOptions, BENCH, "bench:run"),
    "prove": (flags.ProveOptions, PROVE, "prove:run"),
    "recommend": (flags.RecommendOptions, "", "recommend:run"),
    "runs": (flags.RunsOptions, RUNS, "runs:run"),
}
"""The options of each command, the text at the end of its help, and its function."""


def parse(command: str, words: Words = None) -> Any:
    """Parse a command line. Exits after --help, and after an error message of one line."""
    model, examples, _ = COMMANDS[command]
    return parse_flags(model, f"outrider {command}", words, examples)


def run_measurement(command: str, words: Words = None) -> int:
    """Run a measuring command. Returns 0 on success."""
    options = parse(command, words)

    def work() -> int:
        if command in ("compare", "prove"):
            require("torch", f"outrider {command}")
        module, _, function = COMMANDS[command][2].partition(":")
        verb = import_module(f"outrider.measure.verbs.{module}")
        return int(getattr(verb, function)(options))

    return run_command(work, debug=options.debug)


compare, bench, prove = (partial(run_measurement, name) for name in ("compare", "bench", "prove"))
recommend, runs = (partial(run_measurement, name) for name in ("recommend", "runs"))
