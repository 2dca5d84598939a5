"""Draft and target on one machine, on a virtual clock: each slows the other while both work. The
engine, the loop, the throttle and the proposer are real; both models follow a script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from benchmarks.floor.race import VOCABULARY, ScriptedTarget, next_tokens
from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.stage import GROWING, Profiles, Stage, virtual_server
from inference.backends import Chosen, Ranked, Segment
from inference.loop.decode import Loop
from inference.loop.draft_thread import Drafting, inline
from inference.loop.throttle import Baseline, Throttle
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.times_file import Profile

SLICES = 16
"""Slices of a call, each of which sees whether the other model works."""


def _profile(first: float, more: float) -> Profile:
    """Times of a model of one row: seconds of a call of one node, and of each further node."""
    times = tuple((1, nodes, first + more * (nodes - 1)) for nodes in range(1, 257))
    return Profile("shared", "scripted", "all", times)


PROFILES = Profiles(_profile(0.6, 0.012), _profile(0.075, 0.0075))


class Sharing(NamedTuple):
    """A machine with both models.

    slows: factor on either model's time while both work
    pays_after: forward passes beside the draft after which it is right; None: it never is
    in_a_row: whether a forward pass without the draft makes the count begin anew
    """

    slows: float
    pays_after: int | None = None
    in_a_row: bool = False


class SharedClock(VirtualClock):
    """A clock on which threads that work at the same time slow each other down.

    disturbed: whether the other one worked during the last call that ended
    """

    def __init__(self, slows: float) -> None:
        super().__init__()
        self.disturbed, self._slows, self._working = False, slows, 0

    def advance(self, seconds: float) -> None:
        self._working += 1
        disturbed = False
        for _ in range(SLICES):
            both = self._working > 1
            disturbed = disturbed or both
            super().advance(seconds / SLICES * (self._slows if both else 1.0))
        self._working -= 1
        self.disturbed = disturbed


class SharedDraft(ScriptedTarget):
    """A draft's Model: sure of its first child, which is the target's token once the draft pays."""

    def __init__(self, clock: SharedClock, sharing: Sharing) -> None:
        super().__init__(1)
        self._clock, self._sharing, self._beside = clock, sharing, 0

    @property
    def pays(self) -> bool:
        after = self._sharing.pays_after
        return after is not None and self._beside >= after

    def count(self, rows: int, nodes: int) -> None:
        """Count a forward pass of the target that has just ended."""
        if self._clock.disturbed:
            self._beside += 1
        elif self._sharing.in_a_row and not self.pays:
            self._beside = 0

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Take keys of the prompt."""
        return [Chosen(np.empty(0, dtype=np.int32)) for _ in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        (segment,) = segments
        later = np.arange(k, dtype=np.int32) + (0 if self.pays else 1)
        ids = (next_tokens(segment)[:, None] + later) % VOCABULARY
        scores = np.log(0.9) + np.log(0.05) * np.arange(k)
        return [Ranked(ids, np.tile(scores.astype(np.float32), (len(ids), 1)))]


def play(sharing: Sharing, tokens: int, seed: int, *, drafts: bool) -> list[float]:  # [tokens]
    """Return when each token of a text reached its reader, in seconds from the prompt on."""
    clock = SharedClock(sharing.slows)
    draft = SharedDraft(clock, sharing)
    server = virtual_server(ScriptedTarget(1, draft.count), VOCABULARY, PROFILES, clock)
    stage = Stage(server, draft, 0.0, PROFILES)

    def begin(drafting: Drafting) -> Callable[[], bool]:
        drafting.open(GROWING.propose(stage), Throttle(Baseline()))
        return drafting.turn

    prompt, params, at = (1 + seed, 2, 3), SamplingParams(0.0, seed=1 + seed), list[float]()
    drafter, order = begin if drafts else inline(), Decode(len(prompt) + tokens)
    with (
        closing(stage.session) as session,
        closing(Loop(prompt, params, session, order, drafter, clock.now)) as loop,
    ):
        for step in loop.steps():
            at += [clock.now()] * len(step.tokens)
    return at
