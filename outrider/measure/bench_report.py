"""The summary of a run: on the terminal, and beside its texts as JSON, CSV, Markdown and plots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import fill

from inference.command import say
from inference.cost.billing import PER_MILLION
from inference.errors import MissingExtra
from inference.files import write_whole
from outrider.measure.bench_plots import draw
from outrider.measure.figures import BASELINE, COSTS, SpeedRatio, by_kind
from outrider.measure.journal import RunRecord, Values
from outrider.measure.report import WIDTH
from outrider.terminal.tables import aligned, write_csv

FEWEST_PROMPTS, FEWEST_TOKENS = 30, 128
"""Prompts of a kind, and the limit of their texts, from which a figure may be claimed."""

DEPTHS = 6
"""Depths whose acceptance the tables show."""

NOTE = (
    "x target-only: geometric mean over prompts [95 %]; length: tokens a forward; ms to the first "
    "piece, and between pieces p50, p99 and most; same: texts as target-only makes; right: answers."
)


def write_results(directory: Path, run: RunRecord) -> str:
    """Write the files, and return the summary for a terminal."""
    rows = list(by_kind(run.texts, starts=run.plan["settings"]["fresh"]))
    said = [NOTE, *_operating_point(run), *_remarks(run, rows)]
    made_with = {"settings": run.plan["settings"], "starts": run.starts, "ends": run.ends}
    found = {"figures": rows, "said": said, **made_with}
    write_whole(directory / "summary.json", f"{json.dumps(found, indent=1)}\n")
    write_csv(directory / "summary.csv", rows)
    try:
        pictures = draw(directory, rows)
    except MissingExtra as error:
        pictures = []
        say(f"no plots: {error}")
    told = "\n".join([*_table(rows, _speeds), "", *(fill(line, WIDTH) for line in said)])
    more = "\n".join(_table(rows, _costs))
    parts = [
        f"# Ways of drafting measured\n\n```\n{told}\n```",
        f"## Gaps, traffic, cost, and share of forwards that accepted depth N\n\n```\n{more}\n```",
        *(f"![{path.stem}]({path.name})" for path in pictures),
        f"## Made with\n\n```json\n{json.dumps(made_with, indent=1)}\n```\n",
    ]
    write_whole(directory / "summary.md", "\n\n".join(parts))
    return told


def _table(rows: Sequence[Values], columns: Callable[[Values], dict[str, str]]) -> list[str]:
    cells = [{"kind": row["kind"], "arm": row["arm"], **columns(row)} for row in rows]
    return aligned(list(cells[0]), [list(cell.values()) for cell in cells]) if cells else []


def _speeds(row: Values) -> dict[str, str]:
    return {
        "prompts": f"{row['prompts']}",
        "x target-only": str(SpeedRatio(**row["speed"])) if row["speed"] else "",
        "tokens/s": f"{row['tokens_per_second']['median']:.1f}",
        "length": f"{row['acceptance_length']:.2f}",
        "first": f"{row['first_token'] * 1e3:.0f}",
        "p99": f"{row['gap_p99'] * 1e3:.0f}",
        "same": f"{row['equal_texts']}/{row['compared_texts']}",
        "right": f"{row['right']}/{row['scored']}",
    }


def _costs(row: Values) -> dict[str, str]:
    usd, joules = (row[name]["value"] for name in COSTS)
    shares = [*(f"{share:.3f}" for share in row["acceptance_by_depth"]), *["-"] * DEPTHS]
    return {
        "p50": f"{row['gap_p50'] * 1e3:.0f}",
        "most": f"{row['gap_largest'] * 1e3:.0f}",
        "bytes up": f"{row['bytes_up']:.0f}",
        "down a token": f"{row['bytes_down']:.0f}",
        "$/1M": "-" if usd is None else f"{usd:.2f}",
        "J/token": "-" if joules is None else f"{joules / PER_MILLION:.2f}",
        **{str(depth + 1): shares[depth] for depth in range(DEPTHS)},
    }


def _operating_point(run: RunRecord) -> Iterator[str]:
    """Yield models, machine, load and link in words, with the link in forwards of the target."""
    first, where = run.starts[0], run.starts[0]["environment"]
    yield "; ".join(f"{name} {value}" for name, value in first["models"].items() if value)
    instructions = ", ".join(where["instructions"]) or "unknown instructions"
    loads = [*(start["environment"]["load"] for start in run.starts)]
    loads += [end["load"] for end in run.ends]
    yield (
        f"{where['processor']}, {where['cpus']} CPUs, {instructions}; load at each start and at "
        f"the end {', '.join(f'{load[0]:.1f}' for load in loads if load)}"
    )
    alone = [text for key, text in run.texts.items() if key.arm == BASELINE]
    forwards = sum(text["forwards"] for text in alone)
    seconds = sum(text["target_seconds"] for text in alone) / max(forwards, 1)
    for trip in (start["round_trip"] for start in run.starts):
        spent = f", {trip / seconds:.2f} forwards of the target ({seconds * 1e3:.1f} ms)"
        yield f"round trip {trip * 1e3:.3g} ms{spent if seconds else ''}"
    libraries = {name: where[name] for name in ("outrider", "torch", "transformers", "grpcio")}
    commits = dict.fromkeys(start["environment"]["commit"] for start in run.starts)
    yield ", ".join(f"{name} {version}" for name, version in libraries.items() if version) + (
        f"; commit {', then '.join(commits)}"
    )


def _remarks(run: RunRecord, rows: Sequence[Values]) -> Iterator[str]:
    """Yield what a reader needs to judge the figures."""
    settings, prompts = run.plan["settings"], run.plan["prompts"]
    most = settings["max_new_tokens"]
    counts = sorted(Counter(kind for _, kind, _ in {key[:3] for key in run.texts}).items())
    least = FEWEST_PROMPTS if most >= FEWEST_TOKENS else 1 + len(prompts)
    if few := ", ".join(f"{count} {kind}" for kind, count in counts if count < least):
        yield (
            f"Too few for a claim: {few} prompts of up to {most} tokens; {FEWEST_PROMPTS} x "
            f"{FEWEST_TOKENS} are needed."
        )
    if run.starts[0]["shared"]:
        yield "Draft and target share this machine: their speed is not that of two machines."
    if any("/code/" in name for name in prompts):
        yield "Code as in HumanEval flatters copies: 64 % of an answer repeats its prompt."
    if lacking := len(prompts.keys() - {key.prompt for key in run.texts}):
        why = "these models cannot take them" if run.ends else "the same command goes on with them"
        yield f"{lacking} of {len(prompts)} prompts are left out: {why}."
    if settings["emulate"]:
        yield f"The target's forwards take the times of {settings['emulate']}."
    for name in COSTS:
        sources = [row[name]["source"] for row in rows if row[name]["value"] is None]
        if reasons := dict.fromkeys(part for one in sources for part in one.split("; ")):
            yield f"{name} is unavailable: {'; '.join(reasons)}."
