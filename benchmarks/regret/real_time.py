"""Whether the virtual clock tells the truth: the same arms on the same texts with models that
really sleep, a link that really delays, and a target in a process of its own.

    python -m benchmarks.regret.real_time [--cells 20:mid:0,...] [--slower 2] [--out DIR]

What real time adds is what the virtual clock leaves out: this machine's own work, HTTP/2, threads
that wake late. With --slower all emulated times are so much longer, and that counts so much less.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.harness import command, table_lines, write_json
from benchmarks.regret.arms import ALONE, ANYWHERE, GROWING, SYNCHRONOUS, Arm
from benchmarks.regret.settings import Setting, settings
from benchmarks.regret.stage import (
    BYTE_TIME,
    PROBES,
    PROFILES,
    Drafting,
    Pair,
    Stage,
    virtual_stage,
)
from benchmarks.regret.study import Cell, Result, embedded_study, play
from benchmarks.regret.texts import PROMPTS
from grpc_comm.client.connection import connect
from inference.backends.timed import TimedModel
from inference.command import run_command
from inference.draft_thread import threaded
from inference.errors import Unavailable
from outrider.link.emulated_link import LinkShape, shaped_link
from outrider.target.spawn import role_environment
from outrider.target.target import READY

COMPARED = (ALONE, GROWING, ANYWHERE, next(arm for arm in SYNCHRONOUS if arm.name == "tree 16x4"))
"""The arms that are repeated."""

CELLS = ("5:mid:0", "20:mid:0.8", "40:misses:0.8", "80:mid:0", "160:mid:0.8")
"""Those that are repeated unless others are asked for."""

TOKENS = 96
"""Of the one text."""


class Repeated(NamedTuple):
    """An arm in one cell by both clocks. late: share of the emulated seconds by which the draft
    here was late, since this machine was busy.
    """

    cell: Cell
    arm: str
    by_virtual: Result
    by_real: Result
    late: float

    @property
    def virtual(self) -> float:
        """Milliseconds a token."""
        return self.by_virtual.token_ms

    @property
    def real(self) -> float:
        """Milliseconds a token."""
        return self.by_real.token_ms

    @property
    def error(self) -> float:
        """By how much more time real time took."""
        return self.real / self.virtual - 1


@contextmanager
def target_process(cell: Cell, tokens: int, slower: float) -> Iterator[str]:
    """The study's target, with the draft of this cell beside it; yields HOST:PORT. Raises
    Unavailable when it does not start.
    """
    command = [sys.executable, "-m", "benchmarks.regret.real_target", "--level", cell.level]
    command += [f"--temperature={cell.temperature}", f"--tokens={tokens}", f"--slower={slower}"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=role_environment()
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith(READY):
                yield line.removeprefix(READY).strip()
                break
        else:
            raise Unavailable("the study's target did not start")
    finally:
        process.terminate()
        print(process.stderr.read(), file=sys.stderr, end="")
        process.wait()


@contextmanager
def real_stage(
    address: str, pair: Pair, round_trip: float, slower: float
) -> Iterator[tuple[Stage, TimedModel]]:
    """A stage on the machine's clock, and its draft; round_trip in seconds."""
    profiles = PROFILES.slower(slower)
    shape = LinkShape(delay_ms=slower * round_trip / 2 * 1e3, mbit=8e-6 / BYTE_TIME / slower)
    draft = TimedModel(pair.draft(), profiles.here)
    with shaped_link(address, shape) as link, connect(link.address) as connection:
        stage = Stage(
            now=time.perf_counter,
            draft=draft,
            drafting=lambda: Drafting(draft.emulated_seconds, draft.forwards),
            session=connection.session(),
            round_trips=[connection.probe().seconds for _ in range(PROBES)],
            times=profiles.times,
            drafter=threaded,
        )
        yield stage, draft


def repeat(cell: Cell, arms: Sequence[Arm], tokens: int, slower: float) -> Iterator[Repeated]:
    """Arms on the first text by both clocks. The virtual one is first, so that the draft remembers
    most answers. Figures are as if nothing was slower.
    """
    pair, trip = embedded_study(PROMPTS[:1], tokens).pair(cell), cell.round_trip / 1e3
    virtual = [play(arm, virtual_stage(pair, trip), pair.texts) for arm in arms]
    with target_process(cell, tokens, slower) as address:
        for arm, by_virtual in zip(arms, virtual, strict=True):
            with real_stage(address, pair, trip, slower) as (stage, draft):
                play(arm, stage, pair.texts)  # so that the target remembers most answers, too
            with real_stage(address, pair, trip, slower) as (stage, draft):
                made = play(arm, stage, pair.texts)
                late = draft.late_seconds / draft.emulated_seconds if draft.forwards else 0.0
            yield Repeated(cell, arm.name, by_virtual, made.sped_up(slower), late)


def markdown(repeated: Sequence[Repeated]) -> str:
    """A row for each arm and cell."""
    names = (
        *("cell (RTT ms:draft:T)", "arm", "virtual ms/token", "real ms/token"),
        *("real over virtual", "forwards a token (virtual, real)", "draft late"),
    )
    rows = list[Sequence[str]]()
    for one in repeated:
        forwards = [result.each("forwards") for result in (one.by_virtual, one.by_real)]
        figures = (
            f"{one.virtual:.1f}",
            f"{one.real:.1f}",
            f"{one.error:+.1%}",
            f"{forwards[0]:.2f}, {forwards[1]:.2f}",
            f"{one.late:.1%}",
        )
        rows.append((str(one.cell), one.arm, *figures))
    return "\n".join([*table_lines(names, rows), ""])


def main() -> int:
    parser = command(__doc__)
    parser.add_argument(
        "--cells", default=",".join(CELLS), help="as of benchmarks.regret (default: five)"
    )
    slower = "all emulated times are so much longer, for a busy machine"
    parser.add_argument("--slower", type=float, default=1.0, metavar="TIMES", help=slower)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the text")
    parser.add_argument("--out", type=Path, metavar="DIR", help="real_time.json is written there")
    given = parser.parse_args()
    among = [one.cell for one in settings(given.cells.split(",")) if one == Setting(one.cell)]
    if not among:
        parser.error(f"--cells {given.cells}: no cell matches")
    torch.set_num_threads(1)
    repeated = list[Repeated]()
    for cell in among:
        repeated += repeat(cell, COMPARED, given.tokens, given.slower)
        print(markdown(repeated), file=sys.stderr, flush=True)
    print(markdown(repeated))
    if given.out:
        figures = [
            {"cell": str(one.cell), "arm": one.arm, "virtual_ms": one.virtual, "real_ms": one.real}
            for one in repeated
        ]
        write_json(given.out / "real_time.json", figures)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
