"""One forward of the engine: whose nodes it holds, what it brought, and who hears of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from inference.backends import Segment
from inference.candidates import BestFirst, Snapshot
from inference.engine.scheduler import Seconds, Turn
from inference.engine.session import Opened, Session
from inference.errors import OutriderError
from inference.tree import IntArray, TokenTree

Tell = Callable[[], None]
"""What somebody outside is told; called when the engine's lock is released."""

T = TypeVar("T")

Ask: TypeAlias = Callable[[Sequence[Segment]], Sequence[IntArray]]
"""A call of the model."""


class Forward(NamedTuple):
    """One call of the model, as observers hear of it.

    nodes: of all rows, without padding.  padded_nodes: of each row.
    model_seconds, engine_seconds: of the call, and of the engine around it.
    """

    prefill: bool
    rows: int
    nodes: int
    padded_rows: int
    padded_nodes: int
    model_seconds: float
    engine_seconds: float


class Commit(NamedTuple):
    """What a forward brought a session.

    candidates: nodes below the root that were computed.  accepted: how many of them.
    credit: tokens that the session may still be ahead of its client.
    """

    tokens: tuple[int, ...]
    candidates: int
    accepted: int
    queue_seconds: float
    model_seconds: float
    credit: int


class Observer:
    """Hears what an engine does, on the thread that makes the forwards. This one does nothing."""

    def forward(self, done: Forward) -> None: ...

    def opened(self, session: Session, opened: Opened) -> None: ...

    def committed(self, session: Session, commit: Commit) -> None: ...

    def evicted(self, session: Session) -> None: ...


class Share(ABC):
    """One session's part of a forward. prefill: of tokens that are known already."""

    prefill: ClassVar[bool] = False

    def __init__(self, session: Session, tree: TokenTree, segment: Segment) -> None:
        self.session, self.tree, self.segment = session, tree, segment

    @abstractmethod
    def settle(self, answer: IntArray, took: Took, part: float) -> Commit | None:
        """Take the model's answer. part: seconds of the forward that the session is charged with.
        None where no token was committed.
        """


class ChunkShare(Share):
    """A chunk of a session's prompt."""

    prefill = True

    def __init__(self, session: Session, chunk: Sequence[int]) -> None:
        tree = TokenTree.chain(chunk)
        super().__init__(session, tree, session.live.prepare_chunk(tree))

    def settle(self, answer: IntArray, took: Took, part: float) -> None:
        self.session.filled(self.tree, took.seconds, took.ended)


class TreeShare(Share):
    """The root and the best candidates of a session."""

    def __init__(self, session: Session, best: BestFirst, most: int) -> None:
        self._snapshot = Snapshot(best, most)
        super().__init__(session, self._snapshot.tree, session.begin(self._snapshot))

    def settle(self, answer: IntArray, took: Took, part: float) -> Commit:
        queue = charge(self.session, len(self.tree), took, part)
        tokens = self.session.commits(self._snapshot, answer, took.ended)
        return commit(self.session, tokens, len(self.tree) - 1, queue, took)


def charge(session: Session, nodes: int, took: Took, part: float) -> float:
    """Count the forward; returns the seconds that the session waited for it."""
    queue = max(0.0, took.started - session.ready_since) if session.ready_since else 0.0
    session.charge(nodes, queue, took.seconds, part, len(took.shares))
    return queue


def commit(
    session: Session, tokens: Sequence[int], candidates: int, queue: float, took: Took
) -> Commit:
    """What observers hear of these tokens."""
    credit = session.acknowledged + session.credit - session.length
    return Commit(tuple(tokens), candidates, len(tokens) - 1, queue, took.seconds, credit)


class Took(NamedTuple):
    """When the model worked on a forward, and on what. padded: rows, and nodes of each."""

    shares: Sequence[Share]
    padded: tuple[int, int]
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    def parts(self, seconds: Seconds) -> list[float]:
        """Seconds of each share; they add up to the forward's. What a root-only forward takes is
        shared evenly, the rest by nodes below the roots.
        """
        below = [len(share.tree) - 1 for share in self.shares]
        rows, nodes = len(self.shares), sum(below)
        whole = max(seconds(*self.padded), 1e-9)
        even = min(seconds(rows, 1) / whole, 1.0) if nodes else 1.0
        return [
            self.seconds * (even / rows + (1 - even) * (own / nodes if nodes else 0.0))
            for own in below
        ]

    def told(self, engine_seconds: float) -> Forward:
        return Forward(
            self.shares[0].prefill,
            len(self.shares),
            sum(len(share.tree) for share in self.shares),
            *self.padded,
            self.seconds,
            engine_seconds,
        )


class Failure(NamedTuple):
    """A session that cannot take part, and why."""

    session: Session
    error: OutriderError


class InGraph(Protocol):
    """Makes the shares of sessions whose rounds a graph drafts."""

    def share(self, session: Session) -> Share: ...

    def chunk(self, session: Session) -> Share: ...


def prepare(turn: Turn, in_graph: InGraph | None) -> tuple[list[Share], list[Failure]]:
    """Everybody's share, and whoever cannot take part."""
    makers: list[tuple[Session, Callable[[], Share]]] = [
        *((one, partial(ChunkShare, one, chunk)) for one, chunk in turn.chunks),
        *((one, partial(TreeShare, one, best, most)) for one, best, most in turn.trees),
    ]
    if in_graph is not None:
        makers += [(one, partial(in_graph.share, one)) for one in turn.rounds]
        makers += [(one, partial(in_graph.chunk, one)) for one in turn.feeds]
    shares: list[Share] = []
    failed: list[Failure] = []
    for session, make in makers:
        try:
            shares.append(make())
        except OutriderError as error:
            failed.append(Failure(session, error))
    return shares, failed


def ask_each(
    ask: Callable[[Sequence[Segment]], Sequence[T]], segments: Sequence[Segment]
) -> list[T | Exception]:
    """What the model answers for each; when a call with several fails, each is tried alone, and
    only who fails then fails.
    """
    try:
        return list(ask(segments))
    # A fault of the model becomes a session's here, so that the others go on.
    except Exception as error:
        if len(segments) == 1:
            return [error]
    return [ask_each(ask, [segment])[0] for segment in segments]
