"""Scripted drafts, whose calls take simulated time, and checks of their proposers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from inference.backends import Ranked, Segment
from inference.loop.draft_thread import CandidateSink
from inference.order import Progress
from inference.planner.acceptance import PairStats, read_acceptance
from inference.proposer import DraftUsage, Nodes, Proposer
from inference.sampling import SamplingParams
from inference.times import Times
from tests.simulate.kernel import Kernel, kernel
from tests.support.scripted import BASE, Says, ScriptedModel, candidates_of

LEARNED = read_acceptance()


def knowledge(call: float, forward: float, round_trip: float = 0.0) -> PairStats:
    """What a proposer believes of its draft, its target and the way between."""
    times = Times({(1, 1): forward})
    return PairStats(Times({(1, 64): call}), times, copy.deepcopy(LEARNED), round_trip)


class TimedDraft(ScriptedModel):
    """A draft, with seconds of a call of one node."""

    def __init__(self, says: Says, kernel: Kernel, seconds: float, rows: int = 1) -> None:
        super().__init__(says, rows=rows, capacity=1024)
        self._kernel, self._seconds = kernel, seconds

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        nodes = sum(len(one.tokens) for one in segments)
        self._kernel.sleep(self._seconds * (1 + 0.1 * (nodes - 1)))
        return super().rank(segments, k)


class Watched:
    """A Proposer of one text. session: whose streams it has to hear of"""

    def __init__(self, proposer: Proposer, session: CandidateSink) -> None:
        self._proposer, self._session = proposer, session
        self._stream: int | None = None  # on which it named its first node
        self._late: int | None
        self._begin()

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._begin()
        self._proposer.open(prompt, params, end)

    def on_progress(self, progress: Progress, now: float) -> None:
        self._proposer.on_progress(progress, now)

    def on_new_stream(self) -> None:
        self._begin()
        self._proposer.on_new_stream()

    def work(self, now: float) -> DraftUsage | None:
        stream = self._session.stream
        if self._stream not in (None, stream):
            if stream == self._late:
                kernel().crashes.append("a proposer is not told of a new stream")
            self._late = stream  # it came just now: the next turn tells
        return self._proposer.work(now)

    def flush(self, now: float, first: int) -> Nodes | None:
        nodes = self._proposer.flush(now, first)
        if nodes is not None and self._stream is None:
            self._stream = self._session.stream
        for one in () if nodes is None else candidates_of(nodes):
            if one.parent not in self._named:
                kernel().crashes.append("a proposer names a parent of a stream that is gone")
            self._named.add(one.number)
        return nodes

    def close(self) -> None:
        self._proposer.close()

    def _begin(self) -> None:
        """Begin anew: the target holds nothing."""
        self._named, self._stream = {BASE}, None
        self._late = -1  # the last stream that it worked on untold
