"""`outrider runs`: executes the runs of a file one after another, and stores their results."""

from __future__ import annotations

import json
from pathlib import Path

from inference.command import FAILED, INTERRUPTED, printable, say
from inference.errors import OutriderError
from outrider.measure.options import RunsOptions
from outrider.measure.sweeps import NamedRun, read_runs
from outrider.terminal.summary import PROFILE
from outrider.terminal.tables import aligned


def run(options: RunsOptions) -> int:
    """Execute the runs. Returns 0 if all texts of all runs were generated."""
    runs = read_runs(Path(options.file))
    if options.dry_run:
        print(*(run.name for run in runs), sep="\n")
        return 0
    code, rows = 0, list[list[str]]()
    for number, named in enumerate(runs, 1):
        say(f"run {number} of {len(runs)}: {named.name}")
        directory = Path(options.out) / named.directory
        ended = _generate(named, directory)
        code = max(code, ended)
        if ended == INTERRUPTED:
            break
        if not ended:
            rows.append([*_figures(directory), named.name])
    say("\n".join(aligned(("texts", "tokens", "tokens/s", "tokens a forward pass", "run"), rows)))
    return code


def _generate(named: NamedRun, directory: Path) -> int:
    """Generate the texts of a run. Another run may succeed where this one fails."""
    from outrider.role_programs import run_role

    try:
        return run_role(named.options.replace(profile=str(directory)))
    except OutriderError as error:
        say(f"error: {named.name}: {printable(str(error))}")
        return FAILED


def _figures(directory: Path) -> list[str]:
    """Texts, tokens, tokens a second of a text, and tokens a forward pass of a run."""
    texts = json.loads((directory / PROFILE).read_text(encoding="utf-8"))
    tokens = sum(len(text["token_ids"]) for text in texts)
    rates = [sum(text[name] for text in texts) for name in ("seconds", "forwards")]
    return [
        str(len(texts)),
        str(tokens),
        *(f"{tokens / rate:.2f}" if rate else "-" for rate in rates),
    ]
