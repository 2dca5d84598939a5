"""The streams of proposals that a session hears: what has come on each, and who wants to know of
progress.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from inference.candidates import CandidateTree, Nodes


class Streams:
    """Those of one session."""

    def __init__(self, candidates: CandidateTree) -> None:
        self._candidates, self._ids = candidates, count(1)
        self._arrived: dict[int, int] = {}  # stream -> nodes that have come
        self._known: dict[int, int] = {}  # the same when the last forward began
        self._wakes: dict[int, Callable[[], None]] = {}  # by stream

    def join(self) -> int:
        """A stream begins: its id."""
        stream = next(self._ids)
        self._candidates.join(stream)
        self._arrived[stream] = self._known[stream] = 0
        return stream

    def leave(self, stream: int) -> None:
        """The stream's numbers mean nothing any more; its candidates stay."""
        self._candidates.leave(stream)
        self._arrived.pop(stream, None)
        self._known.pop(stream, None)
        self._wakes.pop(stream, None)

    def listen(self, stream: int, wake: Callable[[], None]) -> None:
        """Call `wake` when there is progress, as long as the stream is there."""
        if stream in self._arrived:
            self._wakes[stream] = wake

    @property
    def listeners(self) -> list[Callable[[], None]]:
        return list(self._wakes.values())

    def known(self, stream: int) -> int:
        """Nodes of a stream that had arrived when the last forward began."""
        return self._known.get(stream, 0)

    def arrived(self, stream: int, nodes: Nodes) -> None:
        """These have come."""
        if stream in self._arrived and nodes.proposals:
            last = nodes.proposals[-1].number
            self._arrived[stream] = max(self._arrived[stream], last + 1)

    def forward_begins(self) -> None:
        """What has come by now is known to it."""
        self._known = self._arrived.copy()
