"""Real models on two cores of this machine: a target in a process of its own on one, the draft in
this process on the other, one thread each.

The process of the emulated link runs on the draft's core. Linux only: nothing else says which core
a thread runs on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.forward import StopwatchModel
from benchmarks.regret.stage import BYTE_TIME, PROBES, SEQUENCE_LENGTH, CallTimes, Drafting, Stage
from grpc_comm.client.connection import connect
from grpc_comm.translate import Description
from inference.draft_thread import threaded
from inference.errors import InvalidRequest
from inference.text import Tokenizer
from inference.times import LatencyModel
from outrider.draft_methods import find_draft
from outrider.link.emulated_link import LinkShape, shaped_link
from outrider.models.loading import PREFILL_NODES
from outrider.models.profiles import user_profiles
from outrider.models.sequence_length import Capacity
from outrider.options.groups import MeasureOptions
from outrider.options.roles import DraftRole
from outrider.options.values import Quantization
from outrider.target.spawn import started

MOST_NODES = 64
"""Of a tree below its root: as many as the largest fixed tree has."""

_ROOM = 4096
"""Slots of the draft beside the text: no arm ranks so many nodes at a time."""


class Chosen(NamedTuple):
    """Directories or names of the two models, and the precision of both.

    method: the draft's kind, of --draft.  quantization: the draft's, of --draft_quantization; the
    one beside the target has none
    """

    target: str
    draft: str
    dtype: str = "bfloat16"
    method: str = "model"
    quantization: Quantization | None = None


@dataclass(frozen=True)
class Bench:
    """What runs. target: HOST:PORT; description: what it says of itself.  here: seconds of a
    call of the draft by width.
    """

    chosen: Chosen
    target: str
    description: Description
    tokenizer: Tokenizer
    draft: StopwatchModel
    here: dict[int, float]
    words: str

    @property
    def times(self) -> CallTimes:
        """What was measured, by both processes."""
        return CallTimes(
            self.here, dict(self.description.times), dict(self.description.draft_times)
        )

    @property
    def verify(self) -> float:
        """Seconds that the target takes for a token by itself, as it says."""
        return LatencyModel(self.times.target).seconds(1, 1)

    @contextmanager
    def stage(self, round_trip: float) -> Iterator[Stage]:
        """A stage on the machine's clock, over a link with a round trip of so many seconds more
        than this machine's own.
        """
        draft, shape = self.draft, LinkShape(delay_ms=round_trip / 2 * 1e3, mbit=8e-6 / BYTE_TIME)
        with (
            shaped_link(self.target, shape) as link,
            connect(link.address, tokenizer_fingerprint=self.tokenizer.fingerprint()) as connection,
        ):
            yield Stage(
                now=time.perf_counter,
                draft=draft,
                drafting=lambda: Drafting(draft.seconds, draft.calls),
                session=connection.session(),
                round_trips=[connection.probe().seconds for _ in range(PROBES)],
                times=self.times,
                most_nodes=self.description.max_tree_nodes - 1,
                drafter=threaded,
            )


@contextmanager
def bench(chosen: Chosen) -> Iterator[Bench]:
    """Start the target, load the draft, and measure both where no profile of them is kept.

    Raises InvalidRequest with less than two cores, Mismatch for two tokenizers, Unavailable when
    the target does not start.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        raise InvalidRequest("target and draft need a core each: this process may use one only")
    ours, theirs = sorted(allowed)[:2]
    options = DraftRole(
        draft=chosen.method,
        draft_model=chosen.draft,
        draft_quantization=chosen.quantization,
        device="cpu",
        threads=1,
    ).but(dtype=chosen.dtype)
    checkpoint = find_draft(options)
    with ExitStack() as stack:
        stack.callback(_move, allowed)
        _move({theirs})
        target = stack.enter_context(
            started("fused_target", _target_flags(chosen))
        )  # stays where it was started, from its first thread on
        _move({ours})
        with connect(
            target.address, tokenizer_fingerprint=checkpoint.tokenizer.fingerprint()
        ) as connection:
            description = connection.description
        draft = checkpoint.load(options, Capacity(1, SEQUENCE_LENGTH, _ROOM, PREFILL_NODES))
        here = user_profiles(MeasureOptions(measure_first=True)).draft(
            checkpoint, draft, SEQUENCE_LENGTH
        )
        words = (
            f"Target {Path(description.model).name} on core {theirs}, with "
            f"{Path(description.draft_model).name} beside it; draft "
            f"{Path(checkpoint.name).name} on core {ours}, where the process of the link runs, "
            f"too; {description.dtype}, one thread each{_rounded(chosen)}. "
            f"Emulated link of {8e-6 / BYTE_TIME:g} Mbit/s; the round trip is beyond this "
            "machine's own."
        )
        yield Bench(
            chosen,
            target.address,
            description,
            checkpoint.tokenizer,
            StopwatchModel(draft),
            here,
            words,
        )


@contextmanager
def busy(processes: int) -> Iterator[str]:
    """So many foreign processes that compute without end on all of these cores; says so."""
    with ExitStack() as stack:
        for _ in range(processes):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, range(os.cpu_count() or 1))
        yield f"Foreign busy processes beside: {processes}. Niceness: {os.nice(0)}."


def _rounded(chosen: Chosen) -> str:
    return f", the draft rounded to {chosen.quantization}" if chosen.quantization else ""


def _move(cores: Collection[int]) -> None:
    """All threads of this process, and what they start from now on, run on these cores."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _target_flags(chosen: Chosen) -> list[str]:
    flags = {
        "target_model": chosen.target,
        "draft_model": chosen.draft,
        "device": "cpu",
        "dtype": chosen.dtype,
        "threads": 1,
        "batch": 1,
        "max_tree_nodes": 1 + MOST_NODES,
        "sequence_length": SEQUENCE_LENGTH,
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return ["--measure_first", *given]
