"""A session's streams of proposals: the nodes that arrived on each, and its progress listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from inference.candidates import CandidateTree
from inference.proposer import Nodes


@dataclass
class _StreamState:
    """One stream of proposals."""

    arrived: int = 0  # nodes that have arrived
    known: int = 0  # nodes that had arrived when the last forward pass began
    wake: Callable[[], None] | None = None  # called at each progress


class ProposalStreams:
    """The streams of proposals of one session."""

    def __init__(self, candidates: CandidateTree) -> None:
        self._candidates, self._ids = candidates, count(1)
        self._streams: dict[int, _StreamState] = {}

    def join(self) -> int:
        """Begin a stream; returns its id."""
        stream = next(self._ids)
        self._candidates.join(stream)
        self._streams[stream] = _StreamState()
        return stream

    def leave(self, stream: int) -> None:
        """End a stream: its node numbers become invalid; its candidates remain."""
        self._candidates.leave(stream)
        self._streams.pop(stream, None)

    def listen(self, stream: int, wake: Callable[[], None]) -> None:
        """Call `wake` at each progress until the stream leaves."""
        if stream in self._streams:
            self._streams[stream].wake = wake

    @property
    def listeners(self) -> list[Callable[[], None]]:
        """The callbacks of all streams that listen."""
        return [one.wake for one in self._streams.values() if one.wake is not None]

    def known(self, stream: int) -> int:
        """Nodes of a stream that had arrived when the last forward pass began."""
        return self._streams[stream].known if stream in self._streams else 0

    def count_arrived(self, stream: int, nodes: Nodes) -> None:
        """Record that nodes have arrived on a stream."""
        if stream in self._streams and nodes.tokens:
            one = self._streams[stream]
            one.arrived = max(one.arrived, nodes.end)

    def begin_forward(self) -> None:
        """Mark all arrived nodes as known to the forward pass that begins now."""
        for one in self._streams.values():
            one.known = one.arrived
