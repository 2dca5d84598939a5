"""Runs `outrider prove`, prints its report, and writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from inference.command import FAILED, run_command, say
from inference.files import write_whole
from outrider.measure.prove_options import ProveOptions, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 if all texts are equal, else 1."""
    options = parse(arguments)
    return run_command(lambda: _run(options), debug=options.debug)


def _run(options: ProveOptions) -> int:
    from outrider.measure.proof import Proof, markdown, verdict

    out = Path(options.out)
    proving = import_module("outrider.measure.proving")  # needs torch, which help does not
    proof: Proof = proving.prove(options, out)
    lines = [*markdown(proof), "", verdict(proof)]
    contents = {
        "report.json": json.dumps(proof.record(), indent=1),
        "report.md": "\n".join(lines),
        "profile.json": json.dumps(asdict(proof.profile), indent=1),
    }
    for name, text in contents.items():
        write_whole(out / name, f"{text}\n")
    print(*lines, sep="\n")
    say(f"wrote {', '.join(str(out / name) for name in contents)}")
    return FAILED if proof.unequal else 0
