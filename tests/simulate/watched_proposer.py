"""A proposer that is watched: it hears of every new stream, and names no earlier node there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.draft_thread import CandidateSink
from inference.proposer import BASE, DraftUsage, Nodes, Notice, Proposer
from inference.sampling import SamplingParams
from tests.simulate.kernel import kernel


class Watched:
    """A Proposer of one text. session: whose streams it has to hear of"""

    def __init__(self, proposer: Proposer, session: CandidateSink) -> None:
        self._proposer, self._session = proposer, session
        self._stream: int | None = None  # on which it named its first node
        self._begin()

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._begin()
        self._proposer.open(prompt, params, end)

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice | None) -> None:
        if notice is None:
            self._begin()
        self._proposer.hear(position, tokens, now, notice)

    def work(self, now: float) -> DraftUsage | None:
        stream = self._session.stream
        if self._stream not in (None, stream):
            if stream == self._late:
                kernel().crashes.append("a proposer is not told of a new stream")
            self._late = stream  # it came just now: the next turn tells
        return self._proposer.work(now)

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        nodes = self._proposer.flush(now, next_number)
        if nodes is not None and self._stream is None:
            self._stream = self._session.stream
        for one in () if nodes is None else nodes.proposals:
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
