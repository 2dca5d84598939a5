"""The measuring commands. Each parses its flags before it imports torch and its own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
  outrider bench --presets hybrid,suffix --rtt 40 --samples 5
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

COMMANDS: dict[str, tuple[type[CommandOptions], str]] = {
    "compare": (flags.CompareOptions, COMPARE),
    "bench": (flags.BenchOptions, BENCH),
    "prove": (flags.ProveOptions, PROVE),
    "recommend": (flags.RecommendOptions, ""),
    "runs": (flags.RunsOptions, RUNS),
}
"""The options of each command, and the text at the end of its help."""


def parse(command: str, words: Words = None) -> Any:
    """Parse a command line. Exits after --help, and after an error message of one line."""
    model, examples = COMMANDS[command]
    return parse_flags(model, f"outrider {command}", words, examples)


def _command(name: str) -> Callable[[Words], int]:
    def run(words: Words = None) -> int:
        """Run the command. Returns 0 on success."""
        options = parse(name, words)

        def work() -> int:
            if name in ("compare", "prove"):
                require("torch", f"outrider {name}")
            module: Any = import_module(f"outrider.measure.verbs.{name}")
            return int(module.run(options))

        return run_command(work, debug=options.debug)

    return run


compare, bench, prove = _command("compare"), _command("bench"), _command("prove")
recommend, runs = _command("recommend"), _command("runs")
