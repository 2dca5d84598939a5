"""Draft and target on one machine, on a virtual clock: each slows the other while both work. The
engine, the loop, the throttle and the proposer are real; both models follow a script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from benchmarks.floor.laws import Law
from benchmarks.floor.race import (
    CALL,
    CALL_NODE,
    CHUNK,
    LENGTH,
    MOST_NODES,
    VOCABULARY,
    ScriptedTarget,
    next_tokens,
)
from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.virtual import Link, VirtualServer, VirtualSession
from inference.backends import Chosen, Ranked, Segment
from inference.decode import Loop
from inference.draft_thread import Drafting, inline
from inference.drafters.draft import Draft
from inference.engine.engine import Engine
from inference.order import Decode
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.sampling import SamplingParams
from inference.throttle import Silence, Throttle
from inference.times import Times

SLICES = 16
"""Slices of a call, each of which sees whether the other model works."""


class Sharing(NamedTuple):
    """A machine with both models.

    slows: factor on either model's time while both work
    pays_after: forward passes beside the draft after which it is right; None: it never is
    in_a_row: whether a forward pass without the draft makes the count begin anew
    """

    slows: float
    pays_after: int | None = None
    in_a_row: bool = False


class _Device:
    """The machine. beside: forward passes beside the draft, as Sharing counts them."""

    def __init__(self, clock: VirtualClock, sharing: Sharing) -> None:
        self._clock, self._sharing, self._working = clock, sharing, 0
        self.beside = 0

    @property
    def pays(self) -> bool:
        after = self._sharing.pays_after
        return after is not None and self.beside >= after

    def work(self, seconds: float) -> bool:
        """Spend seconds of one model's work. Returns whether the other worked meanwhile."""
        self._working += 1
        disturbed = False
        for _ in range(SLICES):
            disturbed = disturbed or self._working > 1
            self._clock.advance(
                seconds / SLICES * (self._sharing.slows if self._working > 1 else 1.0)
            )
        self._working -= 1
        return disturbed

    def forward_pass(self, seconds: float) -> None:
        if self.work(seconds):
            self.beside += 1
        elif self._sharing.in_a_row and not self.pays:
            self.beside = 0


class _Draft:
    """A draft's Model: sure of its first child, which is the target's token once the draft pays."""

    rows, capacity, max_nodes = 1, LENGTH + MOST_NODES, CHUNK
    copies_rows, masks, branches = False, False, True

    def __init__(self, device: _Device, seconds: Callable[[int], float]) -> None:
        self._device, self._seconds = device, seconds

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        (segment,) = segments
        self._device.work(self._seconds(len(segment.tokens)))
        later = np.arange(k, dtype=np.int32) + (0 if self._device.pays else 1)
        ids = (next_tokens(segment)[:, None] + later) % VOCABULARY
        scores = np.log(0.9) + np.log(0.05) * np.arange(k)
        return [Ranked(ids, np.tile(scores.astype(np.float32), (len(ids), 1)))]

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Take keys of the prompt."""
        self._device.work(self._seconds(max(len(segment.tokens) for segment in segments)))
        return [Chosen(np.empty(0, dtype=np.int32)) for _ in segments]

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError("a draft's row is not copied")


def play(
    law: Law, sharing: Sharing, times: Times, tokens: int, seed: int, *, drafts: bool
) -> list[float]:  # [tokens]
    """Return when each token of a text reached its reader, in seconds from the prompt on."""
    clock = VirtualClock()
    device = _Device(clock, sharing)
    target = ScriptedTarget(1, lambda rows, nodes: device.forward_pass(law.seconds(rows, nodes)))
    engine = Engine(
        target,
        sequence_length=LENGTH,
        max_tree_nodes=MOST_NODES,
        vocabulary=VOCABULARY,
        times=times,
        clock=clock.now,
    )

    def call(nodes: int) -> float:
        return law.one * CALL * (1 + CALL_NODE * (nodes - 1))

    def begin(drafting: Drafting) -> Callable[[], bool]:
        widths = Times({(1, nodes): call(nodes) for nodes in range(1, 33)})
        known = Knowledge(widths, times, read_acceptance())
        proposer = Draft(_Draft(device, call)).proposer(0, known, Prices(), clock=clock.now)
        drafting.open([proposer], Throttle(Silence()))
        return drafting.turn

    prompt, params, at = (1 + seed, 2, 3), SamplingParams(0.0, seed=1 + seed), list[float]()
    order = Decode(len(prompt) + tokens)
    with closing(VirtualSession(VirtualServer(clock, engine), Link(0.0, 0.0))) as session:
        drafter = begin if drafts else inline()
        with closing(Loop(prompt, params, session, order, drafter, clock.now)) as loop:
            for step in loop.steps():
                at += [clock.now()] * len(step.tokens)
    return at
