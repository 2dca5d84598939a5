"""A session with a target that tells what passes: for the page that draws the candidate tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.decode import TargetSession
from inference.order import Decode, Progress
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.stats import Traffic


class WatchedSession:
    """A TargetSession (inference/decode.py) that hands everything on to another.

    on_nodes: hears of candidates when they are sent
    on_progress: hears of committed tokens when they are received
    """

    def __init__(
        self,
        session: TargetSession,
        on_nodes: Callable[[Nodes], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._session, self._on_nodes, self._on_progress = session, on_nodes, on_progress

    @property
    def traffic(self) -> Traffic:
        return self._session.traffic

    @property
    def stream(self) -> int:
        return self._session.stream

    @property
    def room(self) -> int:
        return self._session.room

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._session.open(prompt, params)

    def decode(self, order: Decode) -> None:
        self._session.decode(order)

    def next_number(self) -> int:
        return self._session.next_number()

    def propose(self, nodes: Nodes) -> None:
        self._on_nodes(nodes)
        self._session.propose(nodes)

    def go(self, base: int) -> None:
        self._session.go(base)

    def receive(self, timeout: float) -> Progress | None:
        progress = self._session.receive(timeout)
        if progress is not None:
            self._on_progress(progress)
        return progress

    def close(self) -> None:
        self._session.close()
