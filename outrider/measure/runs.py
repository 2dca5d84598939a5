"""The verb `outrider runs`: makes the runs of a file one after another, and keeps what came of
each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from inference.command import FAILED, INTERRUPTED, printable, say
from inference.errors import OutriderError
from inference.flags.command_line import CommandOptions
from inference.flags.values import Directory, File
from outrider.measure.sweeps import NamedRun, read_runs
from outrider.terminal.summary import PROFILE
from outrider.terminal.tables import aligned

EXAMPLES = """examples:
  outrider runs runs.yaml --check         the runs that the file asks for
  outrider runs runs.yaml --out results
  outrider runs experiment.xml            an experiment of AutoDraft
  outrider --config results/NAME/outrider-options.json
                                          one of them again"""


class RunsOptions(CommandOptions, title="general"):
    """make the runs and sweeps of a file, and keep options and results of each"""

    BARE: ClassVar = "file"
    file: File
    """a YAML file of runs, or the XML of an AutoDraft experiment (docs/runs.md)"""
    out: Directory = "runs"
    """where results are written: a directory for each run"""
    check: bool = False
    """only read the file, and list its runs"""


def make_runs(options: RunsOptions) -> int:
    """Make the runs. Returns 0 when all texts of all runs were made."""
    runs = read_runs(Path(options.file))
    if options.check:
        print(*(run.name for run in runs), sep="\n")
        return 0
    directories = [Path(options.out) / run.directory for run in runs]
    codes: list[int] = []
    for run, directory in zip(runs, directories, strict=True):
        say(f"run {len(codes) + 1} of {len(runs)}: {run.name}")
        codes.append(_make(run, directory))
        if codes[-1] == INTERRUPTED:
            break
    _print_table([run for run, code in zip(runs, codes, strict=False) if not code], options.out)
    return max(codes)


def _make(run: NamedRun, directory: Path) -> int:
    """Make the texts of a run. Another run may succeed where this one cannot be made."""
    from outrider.role_programs import run_role

    try:
        return run_role(run.options.but(profile=str(directory)))
    except OutriderError as error:
        say(f"error: {run.name}: {printable(str(error))}")
        return FAILED


def _print_table(runs: Sequence[NamedRun], out: str) -> None:
    """Print what came of the runs, in one line each."""
    heads = ("texts", "tokens", "tokens/s", "tokens a forward", "run")
    rows = []
    for run in runs:
        texts = json.loads((Path(out) / run.directory / PROFILE).read_text(encoding="utf-8"))
        rows.append([*_figures(texts), run.name])
    say("\n".join(aligned(heads, rows)))


def _figures(texts: Sequence[dict[str, Any]]) -> list[str]:
    """Texts, tokens, tokens a second of a text, tokens a forward."""
    tokens = sum(len(text["token_ids"]) for text in texts)
    seconds = sum(text["seconds"] for text in texts)
    forwards = sum(text["forwards"] for text in texts)
    return [
        str(len(texts)),
        str(tokens),
        f"{tokens / seconds:.1f}" if seconds else "-",
        f"{tokens / forwards:.2f}" if forwards else "-",
    ]
