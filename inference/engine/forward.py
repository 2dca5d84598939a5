"""One forward of the engine: each session's share of it, its results, and the engine's events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from inference.accept import Verdict, accept_matches
from inference.backends import Segment
from inference.engine.scheduler import Seconds, Turn
from inference.engine.session import Session
from inference.engine.snapshot import Snapshot
from inference.engine.walk import Walk
from inference.errors import OutriderError
from inference.order import Opened
from inference.tree import IntArray, TokenTree

Tell = Callable[[], None]
"""Deferred callback: run after the engine lock is released."""

T = TypeVar("T")

Ask: TypeAlias = Callable[[Sequence[Segment]], Sequence[IntArray]]
"""A call of the model: one answer per segment."""


class Forward(NamedTuple):
    """Event: one call of the model."""

    prefill: bool  # a prompt's chunk, for the target or for the draft in its graphs
    rows: int
    nodes: int  # nodes of all rows, without padding
    padded_rows: int
    padded_nodes: int  # nodes of each row, with padding
    model_seconds: float  # time of the call
    engine_seconds: float  # time of the engine's own work around the call: the device waits


class Prefilled(NamedTuple):
    """Event: the prompt is cached; the Opened reply has not been sent."""

    session: Session
    opened: Opened


class Commit(NamedTuple):
    """Event: a forward committed tokens of a session."""

    session: Session
    tokens: tuple[int, ...]
    candidates: int  # nodes below the root that were computed
    accepted: int  # candidates that the target accepted
    queue_seconds: float  # time that the session waited for the forward
    model_seconds: float  # time of the forward
    credit: int  # tokens that the session may still be ahead of its client


class Evicted(NamedTuple):
    """Event: a session lost its row to another session."""

    session: Session


EngineEvent: TypeAlias = Forward | Prefilled | Commit | Evicted


def ignore(event: object) -> None:
    """A listener that does nothing."""


class Share(ABC):
    """One session's share of a forward.

    prefill: whether the share's tokens are known already, so that nothing is chosen.
    tree: the nodes that are computed.
    nodes: their number.
    segment: the tree in the form that the model takes.
    """

    prefill: ClassVar[bool] = False

    def __init__(self, session: Session, tree: TokenTree, segment: Segment) -> None:
        self.session, self.tree, self.segment = session, tree, segment
        self.nodes = len(tree)

    @abstractmethod
    def settle(self, answer: Any, took: Took, part: float) -> Commit | None:
        """Apply the model's answer to the session; returns None when no token was committed.

        answer: [n] the token chosen at each node, or a graph's answer, or what `read` made of it.
        part: seconds of the forward that the session is charged.
        """

    def learn(self) -> None:  # noqa: B027, since most shares teach nothing
        """Learn from what was settled. Called after that, without the engine lock."""


class ChunkShare(Share):
    """The share of a session whose prompt is being prefilled: one chunk of it."""

    prefill = True

    def __init__(self, session: Session, chunk: Sequence[int]) -> None:
        tree = TokenTree.chain(chunk)
        super().__init__(session, tree, session.live.prepare_chunk(tree))

    def settle(self, answer: IntArray, took: Took, part: float) -> None:
        self.session.filled(self.tree, took.seconds, took.ended)


class TreeShare(Share):
    """The share of a decoding session: its root and its best candidates."""

    def __init__(self, session: Session, snapshot: Snapshot) -> None:
        self._snapshot, self._walk = snapshot, Walk((), ())
        super().__init__(session, snapshot.tree, session.begin(snapshot))

    def settle(self, answer: Verdict, took: Took, part: float) -> Commit:
        queue = charge(self.session, self.nodes, took, part)
        self._walk = self.session.commits(self._snapshot, answer, took.ended)
        return commit(self.session, self._walk.tokens, self.nodes - 1, queue, took)

    def learn(self) -> None:
        for claims in self._walk.claims():
            self.session.calibration.observe(claims)


def read(shares: Sequence[Share], answers: Sequence[Any]) -> list[Any]:
    """The answers of a forward, with verdicts in place of the tokens chosen in trees."""
    found = list(answers)
    trees = [
        index
        for index, share in enumerate(shares)
        if isinstance(share, TreeShare) and not isinstance(answers[index], Exception)
    ]
    if trees:
        walked = accept_matches([shares[i].tree for i in trees], [answers[i] for i in trees])
        for index, verdict in zip(trees, walked, strict=True):
            found[index] = verdict
    return found


def charge(session: Session, nodes: int, took: Took, part: float) -> float:
    """Charge a forward to a session; returns the seconds that the session waited for it."""
    queue = max(0.0, took.started - session.ready_since) if session.ready_since else 0.0
    session.charge(nodes, queue, took.seconds, part, len(took.shares))
    return queue


def commit(
    session: Session, tokens: Sequence[int], candidates: int, queue: float, took: Took
) -> Commit:
    """The Commit event of a session's new tokens. queue: seconds waited for the forward."""
    credit = session.acknowledged + session.credit - session.length
    return Commit(session, tuple(tokens), candidates, len(tokens) - 1, queue, took.seconds, credit)


class Took(NamedTuple):
    """A forward that the model has made: its shares and its time."""

    shares: Sequence[Share]
    padded: tuple[int, int]  # rows and nodes of each, padding included
    started: float  # seconds of the engine's clock
    ended: float  # seconds of the engine's clock

    @property
    def seconds(self) -> float:
        """Time of the model's call, in seconds."""
        return self.ended - self.started

    def parts(self, seconds: Seconds) -> list[float]:
        """[shares] seconds charged to each share, which add up to the forward's seconds.

        The time of a root-only forward is divided evenly, and the rest by nodes below the root.

        seconds: time of a forward by rows and nodes.
        """
        below = [share.nodes - 1 for share in self.shares]
        rows, nodes = len(self.shares), sum(below)
        whole = max(seconds(*self.padded), 1e-9)
        even = min(seconds(rows, 1) / whole, 1.0) if nodes else 1.0
        root, node = self.seconds * even / rows, self.seconds * (1 - even) / max(nodes, 1)
        return [root + own * node for own in below]

    def told(self, engine_seconds: float) -> Forward:
        """The event of this forward. engine_seconds: time of the engine's own work around it."""
        return Forward(
            self.shares[0].prefill,
            len(self.shares),
            sum(share.nodes for share in self.shares),
            *self.padded,
            self.seconds,
            engine_seconds,
        )


class Failure(NamedTuple):
    """A session that cannot take part in the forward, and the error."""

    session: Session
    error: OutriderError


class InGraph(Protocol):
    """Makes the shares of sessions whose candidates the target's own graph drafts."""

    def share(self, session: Session) -> Share: ...

    def chunk(self, session: Session) -> Share: ...


def prepare(turn: Turn, in_graph: InGraph | None) -> tuple[list[Share], list[Failure]]:
    """The shares of all sessions of a turn, and the sessions that cannot take part."""
    makers: list[tuple[Session, Callable[[], Share]]] = [
        *((one, partial(ChunkShare, one, chunk)) for one, chunk in turn.chunks),
        *((one, partial(TreeShare, one, snapshot)) for one, snapshot in turn.trees),
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
    """The model's answer, or the exception, for each segment.

    When a call with several segments fails, each segment is tried alone. So only faulty segments
    fail.
    """
    try:
        return list(ask(segments))
    # A model error is charged to the faulty session only, so that the others go on.
    except Exception as error:
        if len(segments) == 1:
            return [error]
    return [ask_each(ask, [segment])[0] for segment in segments]
