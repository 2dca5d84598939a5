"""Whether a crowd on one target gains by drafting, and whether nobody loses: real gRPC, emulated
forwards, scripted texts and drafts.

    nice -n -10 python -m benchmarks.capacity [--parts crowd,arrivals,tenants]
        [--cells neuron:256:0:64,...] [--slower 5] [--rounds 2] [--seconds 10] [--json FILE]

crowd: sessions that stay, in three arms by turns: target-only, growing, and the synchronous tree
(pace WAIT). A cell is curve:context:temperature:sessions. arrivals: users who come by chance at 70
% of what target-only could serve, ask for 48 tokens and go. tenants: one that claims that all of
its full trees are certain, beside three others, each with a key.

One process is the target, two hold all users, on this machine. Emulated times are --slower times as
long where the target's own work counts too much otherwise (tenants: 2 at most; CPU-like curves: 1),
and figures are divided by it again. Every text is held against what the target must say. Exits with
1 when one is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.capacity.parts import (
    WANTED,
    Cell,
    Crowd,
    Tenancy,
    Visits,
    arrivals,
    crowd,
    tenancy,
    tenants,
)
from benchmarks.capacity.target import CURVES
from benchmarks.harness import command, table_lines, write_json
from inference.command import run_command

PARTS = ("crowd", "arrivals", "tenants")
CELLS = (
    *(Cell("neuron", context, heat, 64) for context in (256, 2048) for heat in (0.0, 0.8)),
    *(Cell("neuron", 256, 0.0, sessions) for sessions in (16, 32)),
    *(Cell("cpu", 256, heat, 64) for heat in (0.0, 0.8)),
    Cell("cpu", 2048, 0.0, 64),
)
TENANCIES = tuple(tenancy(curve) for curve in CURVES)
ARRIVING = 120
"""Users who come and go, in each round of an arm."""

TENANTS_SLOWER = 2.0

Row: TypeAlias = "Crowd | Visits | Tenancy"


def name(cell: Cell) -> str:
    """Return the name of a cell, as --cells takes it."""
    return f"{cell.curve}:{cell.context}:{cell.temperature:g}:{cell.sessions}"


def matching(among: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose names match one of the patterns, such as `cpu:*`."""
    return [cell for cell in among if any(fnmatch(name(cell), pattern) for pattern in patterns)]


def slowed(curve: str, slower: float) -> float:
    """By how much the times of this curve are stretched."""
    return slower if curve == "neuron" else 1.0


def measure(given: argparse.Namespace) -> Iterator[Row]:
    """Everything that was asked for, as it comes."""
    if "crowd" in given.parts:
        for cell in matching(CELLS, given.cells):
            yield from crowd(cell, given.rounds, given.seconds, slowed(cell.curve, given.slower))
    if "arrivals" in given.parts:
        yield from arrivals(0.0, given.users, given.rounds, given.slower, rows=64)
    if "tenants" in given.parts:
        for cell in matching(TENANCIES, given.cells):
            slower = slowed(cell.curve, min(given.slower, TENANTS_SLOWER))
            yield from tenants(cell.curve, given.rounds, given.seconds, slower)


def columns(row: Row) -> dict[str, str]:
    """A row of the table, by heads."""
    if isinstance(row, Crowd):
        served = zip(WANTED, row.served, strict=True)
        return {
            "cell": name(row.cell),
            "arm": row.arm,
            "tokens/s": f"{row.rate:.0f}",
            "of target-only": f"{row.of_alone:.2f}",
            "slowest user": f"{row.least:.2f}",
            **{f"users at {least}": f"{users:g}" for least, users in served},
            "forward, ms": f"{row.forward_ms:.0f}",
            "nodes a row": f"{row.nodes:.1f}",
            "target's CPU, ms a forward": f"{row.cpu_ms:.0f}",
            "late": f"{row.late:.1%}",
            "RSS, MiB": f"{row.rss_mib:.0f}",
            "keys and values, GiB": f"{row.kv_gib:.1f}",
        }
    if isinstance(row, Visits):
        return {
            "T": f"{row.temperature:g}",
            "arm": row.arm,
            "users": str(row.users),
            "TTFT p50, p99": f"{row.ttft_p50:.0f}, {row.ttft_p99:.0f}",
            "gap p50, p99": f"{row.gap_p50:.0f}, {row.gap_p99:.0f}",
            "token p99": f"{row.token_p99:.0f}",
            "mean per token p50, p99": f"{row.tpot_p50:.1f}, {row.tpot_p99:.1f}",
        }
    return {
        "curve": row.curve,
        "narrow tenants": row.narrow_arm,
        "tokens/s each": f"{row.narrow_rate:.1f}",
        "slowest narrow, of root-only": f"{row.least_narrow:.3f}",
        "wide, of root-only": f"{row.wide:.2f}",
        "nodes a row": f"{row.nodes:.1f}",
    }


def markdown(rows: Sequence[Row]) -> str:
    """A table for each part."""
    lines = list[str]()
    for heads, part in groupby(map(columns, rows), key=tuple):
        lines += ["", *table_lines(heads, (list(row.values()) for row in part))]
    return "\n".join([*lines, ""])


def record(rows: Sequence[Row], slower: float) -> dict[str, Any]:
    """Everything, for JSON."""
    each = [{"part": type(row).__name__, **row._asdict()} for row in rows]
    return {"slower": slower, "rows": each}


def parser() -> argparse.ArgumentParser:
    made = command(__doc__)
    made.add_argument("--parts", type=_listed, default=list(PARTS), help=f"of {','.join(PARTS)}")
    made.add_argument("--cells", type=_listed, default=["*"], help="patterns, as neuron:256:*:64")
    made.add_argument("--slower", type=float, default=5.0, metavar="TIMES")
    made.add_argument("--rounds", type=int, default=2, help="of every arm (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=10.0, help="of a window")
    made.add_argument("--users", type=int, default=ARRIVING, help="who come and go, in a round")
    made.add_argument("--json", type=Path, metavar="FILE", default=Path("results/capacity.json"))
    return made


def _listed(text: str) -> list[str]:
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    asking = parser()
    given = asking.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        asking.error(f"--parts: got {', '.join(sorted(unknown))}, there are {', '.join(PARTS)}")
    if not matching((*CELLS, *TENANCIES), given.cells):
        there = ", ".join(map(name, (*CELLS, *TENANCIES)))
        asking.error(f"--cells: none matches; there are {there}")
    rows = list[Row]()
    for row in measure(given):
        rows.append(row)
        print(markdown([row]), file=sys.stderr, flush=True)
        write_json(given.json, record(rows, given.slower))
    print(f"Emulated times were {given.slower:g} times as long on the Neuron-like curve.")
    print(markdown(rows))
    problems = [problem for row in rows for problem in row.problems]
    print("\n".join(problems) or "Every text is the target's own.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
