"""The scheduler: which kind of forward pass comes next, for which sessions, and with how many
nodes.

A forward pass is a rectangle: rows times the largest tree, padded to a bucket. Candidates are
ordered by value, and every prefix of that order is a tree. The width is chosen for the most tokens
a second, as long as each session keeps its root-only rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from inference.backends import Model
from inference.engine.selection import FloatArray, Selection, best_of, lines_of
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.order import Pace
from inference.times import CHANGED, TRUSTED, Cost, Shape, Times
from inference.tree.token_tree import TokenTree

ForwardSeconds = Callable[[int, int], float]
"""Seconds(rows, nodes of each) -> seconds of a forward pass, padding included."""


def plan_width(
    values: FloatArray,
    credit: FloatArray,
    cost: Callable[[int], Cost],
    most: int,
    premium: float,
) -> int:
    """Nodes of each row in the next forward pass, the root included.

    It maximises the expected tokens a second over powers of two and `most`. A width is allowed if
    every session keeps least_rate of its root-only rate, however long the forward pass takes. Its
    expected tokens and its service credit count towards that.

    values: [rows, longest] expected tokens of each node. The root's is 1, the others
    fall, and padding is 0.
    credit: [rows] tokens that each session is ahead of its root-only rate, or may fall behind.
    cost: of a forward pass by the nodes of each row.
    most: the greatest width.
    premium: factor in tokens a second by which a width must win whose time was not measured.
    """
    expected = values.cumsum(axis=1)  # [rows, longest] by a row's first 1, 2, ... nodes
    rows, longest = expected.shape
    root_only = max(cost(1).expected, 1e-9)
    best, best_rate = 1, rows / root_only
    width, last = 1, min(most, longest)
    while width < last:
        width = min(2 * width, last)
        one, tokens = cost(width), expected[:, width - 1]
        needed = TUNING.least_rate * one.maximum / root_only
        measured = one.maximum <= one.expected
        if not (tokens + credit >= needed).all():
            continue
        rate = float(tokens.sum()) / max(one.expected, 1e-9)
        if rate > (TUNING.least_gain if measured else premium) * best_rate:
            best, best_rate = width, rate
    return best


def allowed_deficit(session: Session) -> float:
    """Tokens that a session may be behind its root-only rate after the next forward pass.

    As many as root-only forward passes repay until the end that its client ordered, up to
    most_deficit. 0 for a session of which no candidate was ever accepted.
    """
    if session.order is None or not session.candidates.taken:
        return 0.0
    left = min(session.order.end, session.limit) - session.length
    return min((1 - TUNING.least_rate) * max(left, 0), TUNING.most_deficit)


class ForwardKind(Enum):
    """Kinds of forward passes."""

    PREFILL = "prefill"  # chunks of prompts
    TREES = "trees"  # roots with candidates
    ROUNDS = "rounds"  # the target's own graph drafts
    FEEDS = "feeds"  # chunks for the draft in the target's graph


TIMED = frozenset({ForwardKind.PREFILL, ForwardKind.TREES})
"""Kinds of forward passes whose times the Times of the target describes."""

ReadySets: TypeAlias = Mapping[ForwardKind, Sequence[Session]]
"""Sessions on rows that are ready for a forward pass, by its kind. In order of preference."""


class HeldUp(NamedTuple):
    """Sessions that are delayed while others draft. They are promised their root-only rate."""

    sessions: Sequence[Session]
    root_only: float  # seconds of a root-only forward pass of all ready sessions

    def tokens(self, seconds: float) -> float:
        """Tokens that each session is promised in so many seconds."""
        return TUNING.least_rate * seconds / max(self.root_only, 1e-9)

    def can_wait(self, seconds: float) -> bool:
        """Whether each session has the service credit that a delay of so many seconds costs."""
        needed = self.tokens(seconds)
        return all(session.service_credit >= needed for session in self.sessions)

    def are_ahead(self) -> bool:
        """Whether each session has service credit."""
        return all(session.service_credit > 0 for session in self.sessions)

    def count_delay(self, seconds: float) -> None:
        """Subtract a delay of so many seconds from the sessions' service credit."""
        for session in self.sessions:
            session.add_service(-self.tokens(seconds))


PlanPart: TypeAlias = (
    tuple[Session, Sequence[int]]  # and the chunk of its prompt, for PREFILL
    | tuple[Session, TokenTree, float]  # and what Selection.begin_pass() returns, for TREES
    | tuple[Session]  # for ROUNDS and FEEDS
)
"""A session's part of a forward pass."""


class BatchPlan(NamedTuple):
    """The contents of one forward pass, and the sessions that it delays."""

    kind: ForwardKind
    parts: Sequence[PlanPart]
    held_up: HeldUp = HeldUp((), 0.0)


class Scheduler:
    """Plans each forward pass by measured times. Kinds of forward passes take turns.

    times: seconds of a forward pass by rows and nodes.
    most_nodes: nodes of one session in one forward pass, the root included.
    """

    def __init__(self, model: Model, times: Times, most_nodes: int) -> None:
        self.times = times
        self._model, self._most = model, most_nodes
        self._last_made = dict.fromkeys(ForwardKind, 0)  # kind -> number of its last forward pass
        self._forwards = 0
        self._explore: dict[int, tuple[int, int]] = {}  # rows -> passes since, and their bound
        self._roots = {model.padded(rows, 1) for rows in range(1, model.rows + 1)}
        self._trials: dict[int, tuple[int, int]] = {}  # rows -> passes since one, and their bound
        self._last_width = 1  # width of the last forward pass with trees

    def next(self, ready: ReadySets) -> BatchPlan:
        """The next forward pass: of the ready kind that ran least recently; empty for none."""
        wanted = [kind for kind, sessions in ready.items() if sessions]
        if not wanted:
            return BatchPlan(ForwardKind.TREES, ())
        kind = min(wanted, key=lambda kind: self._last_made[kind])
        self._forwards += 1
        self._last_made[kind] = self._forwards
        if kind is ForwardKind.PREFILL:
            decoding = len(ready.get(ForwardKind.TREES, ()))
            return self._prefill(ready[kind], self._chunk_size(decoding))
        if kind is ForwardKind.TREES:
            return self._trees(ready[kind])
        others = ready[ForwardKind.TREES]
        drafted = len(ready[ForwardKind.ROUNDS]) + len(ready[ForwardKind.FEEDS])
        held_up = HeldUp(others, self.seconds(len(others) + drafted, 1))
        return BatchPlan(kind, [(session,) for session in ready[kind]], held_up)

    def record(self, padded: Shape, seconds: float) -> None:
        """Record a forward pass's seconds, the engine's own work included."""
        rows, nodes = padded
        since, most = self._explore.get(rows, (0, TUNING.first_explore))
        if nodes == self._padded(1, 1)[1]:
            self._explore[rows] = 0, min(2 * most, TUNING.explore)
        else:
            known, before = self.times.samples(*padded) >= TRUSTED, self.times.seconds(*padded)
            # if its time has changed, that of root-only forward passes may have changed, too
            changed = known and not 1 / CHANGED < seconds / before < CHANGED
            due = changed and since >= TUNING.first_explore
            self._explore[rows] = most if due else since + 1, most
        self.times.observe(*padded, seconds)

    def promised(self, padded: Shape, rows: int, seconds: float) -> float:
        """Tokens promised to each session in the time of a recorded forward pass.

        That is least_rate of the tokens of root-only forward passes of as many rows in this time. A
        forward pass that is root-only itself promises least_rate.

        seconds: time of the forward pass, as recorded.
        """
        if padded == self._padded(rows, 1):
            return TUNING.least_rate
        return TUNING.least_rate * seconds / max(self.seconds(rows, 1), 1e-9)

    def seconds(self, rows: int, nodes: int) -> float:
        """Expected seconds of a forward pass."""
        return self.times.seconds(*self._padded(rows, nodes))

    def _trees(self, ready: Sequence[Session]) -> BatchPlan:
        selection = (best_of if self._model.branches else lines_of)(
            [session.candidates for session in ready],
            [min(self._most, session.tree_nodes or self._most) for session in ready],
            [max(session.allowed - 1, 0) for session in ready],
        )
        width = self._last_width = self._width(ready, selection)
        useful = max(width, self._useful_width(len(ready)))
        for session in ready:
            waits = session.order is not None and session.order.pace is Pace.WAIT
            most = self._most if waits else useful
            session.room = min(most, session.tree_nodes or most) - 1
        parts = zip(ready, selection.begin_pass(width), strict=True)
        return BatchPlan(ForwardKind.TREES, [(session, *part) for session, part in parts])

    def _width(self, ready: Sequence[Session], selection: Selection) -> int:
        if all(session.order and session.order.pace is Pace.WAIT for session in ready):
            return selection.longest  # synchronous rounds verify all candidates
        rows = len(ready)
        since, most = self._explore.get(self._padded(rows, 1)[0], (0, TUNING.first_explore))
        if since >= most or not self._knows_root(rows):
            return 1
        credit = np.array([one.service_credit + allowed_deficit(one) for one in ready])
        values = selection.values()
        values[:, 1:] *= np.array([session.record.factor for session in ready])[:, None]
        plan = partial(plan_width, values, credit, most=self._most)
        width = plan(cost=partial(self._cost, rows), premium=TUNING.premium)
        waited, wait = self._trials.get(rows, (0, TUNING.first_explore))
        if waited >= wait:
            trial = plan(cost=partial(self._hope, rows), premium=TUNING.premium)
            if trial > width:
                self._trials[rows] = 0, min(2 * wait, TUNING.explore)
                return trial
        self._trials[rows] = waited + 1, wait
        return width

    def _knows_root(self, rows: int) -> bool:
        """Whether root-only forward passes were measured: all promises are relative to their time.

        Those of a few rows more or less suffice where they take about as long.
        """
        known = [one for one in self._roots if self.times.samples(*one) >= TRUSTED]
        fewer = max((one for one in known if one[0] <= rows), default=None)
        more = min((one for one in known if one[0] >= rows), default=None)
        if fewer is None or more is None:
            return False
        return self.times.seconds(*more) <= CHANGED * self.times.seconds(*fewer)

    def _cost(self, rows: int, nodes: int) -> Cost:
        return self.times.cost(*self._padded(rows, nodes))

    def _hope(self, rows: int, nodes: int) -> Cost:
        return self.times.hope(*self._padded(rows, nodes))

    def _useful_width(self, rows: int) -> int:
        """Nodes of the widest forward pass that would pay if all candidates were accepted."""
        width, root_only = self._most, self.seconds(rows, 1)
        while width > 1 and self.seconds(rows, width) > width * root_only:
            width //= 2
        return width

    def _chunk_size(self, decoding: int) -> int:
        """Prompt tokens in a forward pass: the model's maximum, or fewer while sessions decode, or
        where a long context makes them slow.
        """
        most, allowed = self._model.max_nodes, TUNING.longest_chunk
        if decoding:
            own = TUNING.prefill_share * self.seconds(decoding, self._last_width)
            allowed = min(allowed, own)
        while most > TUNING.least_chunk and self.seconds(1, most) > allowed:
            most //= 2
        return most

    def _prefill(self, filling: Sequence[Session], most: int) -> BatchPlan:
        """Chunks of prompts in order of arrival, until the forward pass is full.

        Rows times the longest chunk stay within `most` tokens. A chunk at whose every node a token
        is scored has no more nodes than a tree.
        """
        chunks: list[tuple[Session, list[int]]] = []
        longest = 0
        for session in filling:
            own = min(most, self._most) if session.prompt_scores.missing else most
            longest = max(longest, min(own, session.missing))
            if chunks and longest * (len(chunks) + 1) > most:
                break
            chunks.append((session, session.next_chunk(own)))
        return BatchPlan(ForwardKind.PREFILL, chunks)

    def _padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)
