"""Whether the virtual clock tells the truth: the same arms on the same texts with models that really sleep and a link that really delays.

The target is served over gRPC in this process and reached through an emulated link (outrider/link.py, a process of its own). What
real time adds is what the virtual clock leaves out: this machine's own work, HTTP/2, threads that wake late.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from benchmarks.regret.arms import ADAPTIVE, ALONE, ANYWHERE, ARMS
from benchmarks.regret.stage import (
    BYTE_TIME,
    MOST_NODES,
    PROFILES,
    ROOM_BESIDE,
    Pair,
    Stage,
    serve,
    virtual_stage,
)
from benchmarks.regret.study import Cell, Result, Study, play
from grpc_comm.client import connect
from grpc_comm.server import BackgroundServer, Target
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.backends.timed import TimedModel
from inference.drafters.hosted import Host, HostedDrafter
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.policy import Chain
from outrider.link import Shape, shaped_link

COMPARED = (
    "chain 4",
    "tree 16x4",
    "AutoDraft's rule, round trip known",
    "fused, tree 16x4",
    ALONE.name,
    ADAPTIVE.name,
    ANYWHERE.name,
)
"""Names of the arms that are repeated."""

CELLS = ("5:mid:0", "20:weak:0.8", "40:mid:0.8", "80:close:0", "160:mid:0.8")
"""Those that are repeated unless others are asked for."""


class Repeated(NamedTuple):
    """An arm in one cell by both clocks. late: share of the emulated seconds by which the draft here was late, since this machine was busy."""

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
    def more_a_round(self) -> float:
        """Milliseconds that a round took longer in real time, if it had brought as many tokens."""
        return (self.real - self.virtual) * self.by_real.round_tokens

    @property
    def error(self) -> float:
        """By how much more time real time took."""
        return self.real / self.virtual - 1


@contextmanager
def real_stage(pair: Pair, round_trip: float, slower: float) -> Iterator[Stage]:
    """A stage on the machine's clock, on which everything takes `slower` times as long; round_trip in seconds."""
    profiles = PROFILES.slower(slower)
    engine = serve(TimedModel(pair.target(), profiles.target), pair.vocabulary)
    host = Host(profiles.times.beside, profiles.times.target, MOST_NODES, ROOM_BESIDE)
    timed = TimedModel(pair.draft(), profiles.beside)
    beside = DraftPool(
        timed,
        Chain(1),
        room=ROOM_BESIDE,
        own=lambda model, row: HostedDrafter(model, host, row=row),
    )
    shape = Shape(delay_ms=slower * round_trip / 2 * 1e3, mbit=8e-6 / BYTE_TIME / slower)
    draft = TimedModel(pair.draft(), profiles.here)
    with (
        BackgroundServer(
            Target(engine, _describe(engine), Address("127.0.0.1", 0), drafts=beside)
        ) as server,
        shaped_link(str(server.address), shape) as link,
        connect(link.address) as connection,
    ):
        verifier = connection.verifier()
        yield Stage(
            time.perf_counter,
            draft,
            lambda: draft.emulated_seconds,
            verifier,
            connection.probe,
            profiles.times,
        )


def repeat(study: Study, among: Sequence[Cell], slower: float) -> Iterator[Repeated]:
    """COMPARED in these cells by both clocks, on the first text; the virtual one is first, so that both models remember most answers.

    slower: in real time everything takes so many times as long, and this machine's own work counts so many times less.
    """
    for cell in among:
        pair = study.pair(cell)
        for arm in (arm for arm in ARMS if arm.name in COMPARED):
            virtual = play(arm, virtual_stage(pair, cell.round_trip / 1e3), pair.texts[:1])
            with real_stage(pair, cell.round_trip / 1e3, slower) as stage:
                real, late = play(arm, stage, pair.texts[:1]), _lateness(stage)
            real = replace(real, seconds=real.seconds / slower, drafted=real.drafted / slower)
            yield Repeated(cell, arm.name, virtual, real, late)


def markdown(repeated: Sequence[Repeated]) -> str:
    """A row for each arm and cell."""
    names = (
        "cell (RTT ms:draft:T)",
        "arm",
        "virtual ms/token",
        "real ms/token",
        "real over virtual",
        "ms more a round",
        "draft late",
    )
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for one in repeated:
        figures = (
            f"{one.virtual:.1f}",
            f"{one.real:.1f}",
            f"{one.error:+.1%}",
            f"{one.more_a_round:.1f}",
            f"{one.late:.1%}",
        )
        lines.append("| " + " | ".join((str(one.cell), one.arm, *figures)) + " |")
    return "\n".join([*lines, ""])


def _lateness(stage: Stage) -> float:
    timed = stage.draft
    assert isinstance(timed, TimedModel)
    return timed.late_seconds / timed.emulated_seconds if timed.emulated_seconds else 0.0


def _describe(engine: Engine) -> Description:
    return Description(
        server_version="",
        model="embedded target",
        model_fingerprint="embedded",
        tokenizer_fingerprint="embedded",
        vocabulary=engine.vocabulary,
        sequence_length=engine.sequence_length,
        max_tree_nodes=engine.max_tree_nodes,
        rows=engine.model.rows,
        dtype="float32",
        device=PROFILES.target.label("the embedded target"),
        stop_ids=frozenset(),
    )
