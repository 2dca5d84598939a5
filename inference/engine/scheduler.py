"""What goes into the next forward: prompts' chunks or trees, of whom, and how many nodes of each.

A forward is a rectangle: rows times the largest tree, padded to a bucket. Candidates come in order
of value, so a beginning of them is a tree. The width is what brings most tokens a second, as long
as no session is slower than root-only forwards of the same sessions would make it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from inference.backends import Model
from inference.candidates import BestFirst
from inference.engine.session import Session
from inference.order import Pace
from inference.times import KEPT, TRUSTED, Shape, TargetTimes

LEAST_RATE = 0.98
"""Part of its root-only rate that every session keeps in a forward with candidates."""

LEAST_GAIN = 1.02
"""A wider forward must bring this many times the tokens a second: times are measured."""

PREFILL_SHARE = 2.0
"""A chunk of a prompt may take this many times as long as a forward of those who decode."""

LEAST_CHUNK = 16

FIRST_EXPLORE, EXPLORE = 4, 64
"""Forwards with candidates after which one is made without, of as many rows: its time is the
yardstick. It is taken often at first, each time after twice as many.
"""

Seconds = Callable[[int, int], float]
"""Seconds of a forward of so many rows and nodes of each, padding included."""


class Offer(Protocol):
    """What a session can use of a forward."""

    def upto(self, nodes: int) -> int:
        """Nodes that it has, the root included, of at most so many."""
        ...

    def tokens(self, nodes: int) -> float:
        """Tokens expected of the first `nodes` nodes; the root alone brings one."""
        ...

    @property
    def banked(self) -> float:
        """Tokens that it is ahead of root-only forwards."""
        ...


class Candidates(NamedTuple):
    """The offer of a session with candidates. most: nodes that it may have in a forward."""

    best: BestFirst
    most: int
    banked: float

    def upto(self, nodes: int) -> int:
        return len(self.best.upto(min(nodes, self.most)))

    def tokens(self, nodes: int) -> float:
        return sum(self.best.values[: self.upto(nodes)])


def plan_width(offers: Sequence[Offer], seconds: Seconds, most: int) -> int:
    """Nodes of each row in the next forward, the root included.

    It maximises expected tokens a second over powers of two, and `most`. A width is allowed where
    every session's expected tokens, with what it has banked, come to LEAST_RATE of what root-only
    forwards would bring it in the same time.
    """
    rows = len(offers)
    root_only = seconds(rows, 1)
    best, best_rate = 1, rows / max(root_only, 1e-9)
    width = 1
    while width < most and any(offer.upto(width + 1) > width for offer in offers):
        width = min(2 * width, most)
        cost = seconds(rows, width)
        tokens = [offer.tokens(width) for offer in offers]
        needed = LEAST_RATE * cost / max(root_only, 1e-9)
        if any(one + offer.banked < needed for one, offer in zip(tokens, offers, strict=True)):
            continue
        rate = sum(tokens) / max(cost, 1e-9)
        if rate > LEAST_GAIN * best_rate:
            best, best_rate = width, rate
    return best


class Turn(NamedTuple):
    """What one forward is made of: one of chunks of prompts, sessions' trees, rounds in a graph,
    and chunks for the draft in it. trees: whose, and the most nodes of each, the root included.
    """

    chunks: Sequence[tuple[Session, list[int]]] = ()
    trees: Sequence[tuple[Session, BestFirst, int]] = ()
    rounds: Sequence[Session] = ()
    feeds: Sequence[Session] = ()


class Wanting(NamedTuple):
    """Sessions on rows that want a forward, by its kind.

    filling: have prompts to prefill.  decoding: with candidates that anybody proposed.
    in_graph: the target's own graph drafts for them.  unfed: it would, and its draft lacks tokens
    of theirs.
    """

    filling: Sequence[Session]
    decoding: Sequence[Session]
    in_graph: Sequence[Session]
    unfed: Sequence[Session] = ()


class Turns:
    """Decides forward by forward, by what forwards take. Kinds of forwards take turns."""

    def __init__(
        self, model: Model, times: TargetTimes, most_nodes: int, *, branches: bool
    ) -> None:
        self.times = times
        self._model, self._most, self._branches = model, most_nodes, branches
        self._last_made = [0, 0, 0, 0]  # by kind: number of its last forward
        self._forwards = 0
        self._samples: dict[Shape, deque[float]] = {}  # the latest of each, however long ago
        self._medians: dict[Shape, float] = {}
        self._explore: dict[int, tuple[int, int]] = {}  # by rows: forwards since, and how many may
        self._last_width = 1  # of the trees of the last forward that had some

    def next(self, wanting: Wanting) -> Turn:
        """A forward of the kind that is wanted and was not made for longest."""
        wanted = [kind for kind, sessions in enumerate(wanting) if sessions]
        if not wanted:
            return Turn()
        kind = min(wanted, key=lambda kind: self._last_made[kind])
        self._forwards += 1
        self._last_made[kind] = self._forwards
        if kind == 0:
            size = self._chunk_size(len(wanting.decoding))
            return Turn(chunks=self._chunks(wanting.filling, size))
        if kind == 1:
            return self._trees(wanting.decoding)
        return Turn(rounds=wanting.in_graph) if kind == 2 else Turn(feeds=wanting.unfed)

    def record(self, padded: Shape, seconds: float) -> None:
        """A forward of this padded shape took so long, the engine's own work included."""
        self.times.observe(*padded, seconds)
        samples = self._samples.setdefault(padded, deque(maxlen=KEPT))
        samples.append(seconds)
        if len(samples) >= TRUSTED:
            self._medians[padded] = median(samples)
        since, most = self._explore.get(padded[0], (0, FIRST_EXPLORE))
        if padded[1] == self._padded(1, 1)[1]:
            self._explore[padded[0]] = 0, min(2 * most, EXPLORE)
        else:
            self._explore[padded[0]] = since + 1, most

    def owed(self, padded: Shape, rows: int, seconds: float) -> float:
        """Tokens that root-only forwards of so many rows would bring each in the time that this
        forward took, as far as they are promised. A root-only forward is its own yardstick.
        """
        if padded == self._padded(rows, 1):
            return LEAST_RATE
        return LEAST_RATE * seconds / max(self.seconds(rows, 1), 1e-9)

    def seconds(self, rows: int, nodes: int) -> float:
        """As measured, or as believed before it was."""
        padded = self._padded(rows, nodes)
        known = self._medians.get(padded)
        return self.times.seconds(*padded) if known is None else known

    def _trees(self, ready: Sequence[Session]) -> Turn:
        offers = [self._offer(session) for session in ready]
        width = self._last_width = self._width(ready, offers)
        useful = max(width, self._useful_width(len(ready)))
        for session in ready:
            waits = session.order is not None and session.order.pace is Pace.WAIT
            most = self._most if waits else useful
            session.room = min(most, session.tree_nodes or most) - 1
        return Turn(
            trees=[
                (session, offer.best, min(width, offer.most))
                for session, offer in zip(ready, offers, strict=True)
            ]
        )

    def _width(self, ready: Sequence[Session], offers: Sequence[Candidates]) -> int:
        if all(session.order and session.order.pace is Pace.WAIT for session in ready):
            return max(offer.upto(self._most) for offer in offers)  # they pay by the forward
        since, most = self._explore.get(self._padded(len(ready), 1)[0], (0, FIRST_EXPLORE))
        if since >= most:
            return 1
        return plan_width(offers, self.seconds, self._most)

    def _useful_width(self, rows: int) -> int:
        """The widest forward that could be worth making, were all candidates certain."""
        width, root_only = self._most, self.seconds(rows, 1)
        while width > 1 and self.seconds(rows, width) > width * root_only:
            width //= 2
        return width

    def _offer(self, session: Session) -> Candidates:
        order, most = session.order, min(self._most, session.tree_nodes or self._most)
        if order is not None and order.most_nodes:
            most = min(most, max(order.most_nodes - session.spent.nodes, 1))
        best = session.candidates.best(max(session.allowed - 1, 0), branches=self._branches)
        return Candidates(best, most, session.banked)

    def _chunk_size(self, decoding: int) -> int:
        """Prompt tokens in one forward: as many as the model takes, fewer while others decode."""
        most = self._model.max_nodes
        if decoding:
            allowed = PREFILL_SHARE * self.seconds(decoding, self._last_width)
            while most > LEAST_CHUNK and self.seconds(1, most) > allowed:
                most //= 2
        return most

    def _chunks(self, filling: Sequence[Session], most: int) -> list[tuple[Session, list[int]]]:
        """Prompts in order of arrival, as long as rows times the longest chunk stay within
        `most` tokens.
        """
        chunks: list[tuple[Session, list[int]]] = []
        longest = 0
        for session in filling:
            longest = max(longest, min(most, session.missing))
            if chunks and longest * (len(chunks) + 1) > most:
                break
            chunks.append((session, session.next_chunk(most)))
        return chunks

    def _padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)
