"""A session's streams of proposals: the nodes that arrived on each, and its progress listener."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from inference.candidates import CandidateTree
from inference.proposer import Nodes


class Streams:
    """The streams of proposals of one session."""

    def __init__(self, candidates: CandidateTree) -> None:
        self._candidates, self._ids = candidates, count(1)
        self._arrived: dict[int, int] = {}  # stream -> nodes that have arrived
        self._known: dict[int, int] = {}  # stream -> nodes known when the last forward began
        self._wakes: dict[int, Callable[[], None]] = {}  # stream -> listener

    def join(self) -> int:
        """Begin a stream; returns its id."""
        stream = next(self._ids)
        self._candidates.join(stream)
        self._arrived[stream] = self._known[stream] = 0
        return stream

    def leave(self, stream: int) -> None:
        """End a stream: its node numbers become invalid, and its candidates stay."""
        self._candidates.leave(stream)
        self._arrived.pop(stream, None)
        self._known.pop(stream, None)
        self._wakes.pop(stream, None)

    def listen(self, stream: int, wake: Callable[[], None]) -> None:
        """Call `wake` at each progress until the stream leaves."""
        if stream in self._arrived:
            self._wakes[stream] = wake

    @property
    def listeners(self) -> list[Callable[[], None]]:
        """The callbacks of all streams that listen."""
        return list(self._wakes.values())

    def known(self, stream: int) -> int:
        """Nodes of a stream that had arrived when the last forward began."""
        return self._known.get(stream, 0)

    def arrived(self, stream: int, nodes: Nodes) -> None:
        """Record that nodes have arrived on a stream."""
        if stream in self._arrived and nodes.proposals:
            last = nodes.proposals[-1].number
            self._arrived[stream] = max(self._arrived[stream], last + 1)

    def forward_begins(self) -> None:
        """Mark all arrived nodes as known to the forward that begins now."""
        self._known = self._arrived.copy()
