"""The scheduler decides which kind of forward pass comes next, for which sessions, and how wide.

A forward pass computes a rectangle, rows times the nodes of the largest tree, padded to a bucket.
The width is chosen to maximise tokens per second, as long as each session keeps its root-only rate.
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
"""ForwardSeconds(rows, nodes of each row) returns seconds of a forward pass, padding included."""


def plan_width(
    values: FloatArray,
    credit: FloatArray,
    cost: Callable[[int], Cost],
    limit: int,
    premium: float,
) -> int:
    """Return the number of nodes of each row in the next forward pass, the root included.

    The width maximises expected tokens per second over powers of two and `limit`. It is allowed if
    every session keeps min_rate of its root-only rate, however long the forward pass takes; the
    session's expected tokens and service credit count towards that.

    values: [rows, longest] expected tokens of each node: 1 for the root, then non-increasing, and
        0 for padding.
    credit: [rows] tokens that each session is ahead of its root-only rate, or may fall behind.
    cost: seconds of a forward pass by the nodes of each row.
    limit: the maximum width.
    premium: factor in tokens per second by which a width without measured time must win.
    """
    expected = values.cumsum(axis=1)  # [rows, longest] by a row's first 1, 2, ... nodes
    rows, longest = expected.shape
    root_only = max(cost(1).expected, 1e-9)
    best, best_rate = 1, rows / root_only
    width, last = 1, min(limit, longest)
    while width < last:
        width = min(2 * width, last)
        estimate, tokens = cost(width), expected[:, width - 1]
        needed = TUNING.min_rate * estimate.maximum / root_only
        measured = estimate.maximum <= estimate.expected
        if not (tokens + credit >= needed).all():
            continue
        rate = float(tokens.sum()) / max(estimate.expected, 1e-9)
        if rate > (TUNING.min_gain if measured else premium) * best_rate:
            best, best_rate = width, rate
    return best


def allowed_deficit(session: Session) -> float:
    """Return how many tokens a session may be behind its root-only rate after the next pass.

    Root-only forward passes must be able to repay them before the ordered end of the output. At
    most max_deficit; 0 for a session of which no candidate was ever accepted.
    """
    if session.order is None or not session.candidates.accepted:
        return 0.0
    remaining = min(session.order.end, session.limit) - session.length
    return min((1 - TUNING.min_rate) * max(remaining, 0), TUNING.max_deficit)


class ForwardKind(Enum):
    """Kinds of forward passes."""

    PREFILL = "prefill"  # chunks of prompts
    TREES = "trees"  # roots with candidates
    ROUNDS = "rounds"  # rounds in which the target's graph also drafts
    FEEDS = "feeds"  # chunks of committed tokens for the draft in the target's graphs


TIMED = frozenset({ForwardKind.PREFILL, ForwardKind.TREES})
"""Kinds of forward passes whose durations are recorded in the target's Times."""

ReadySets: TypeAlias = Mapping[ForwardKind, Sequence[Session]]
"""Ready sessions on rows, by kind of forward pass, in order of preference."""


class DelayedSessions(NamedTuple):
    """Sessions that wait while others draft. Each is promised its root-only rate."""

    sessions: Sequence[Session]
    root_only: float  # seconds of a root-only forward pass of all ready sessions

    def tokens(self, seconds: float) -> float:
        """Return the tokens that each session is promised in this time."""
        return TUNING.min_rate * seconds / max(self.root_only, 1e-9)

    def can_wait(self, seconds: float) -> bool:
        """Whether each session has enough service credit for a delay of this many seconds."""
        needed = self.tokens(seconds)
        return all(session.service_credit >= needed for session in self.sessions)

    def are_ahead(self) -> bool:
        """Whether each session has service credit."""
        return all(session.service_credit > 0 for session in self.sessions)

    def count_delay(self, seconds: float) -> None:
        """Subtract a delay of this many seconds from the sessions' service credit."""
        for session in self.sessions:
            session.add_service(-self.tokens(seconds))


PlanEntry: TypeAlias = (
    tuple[Session, Sequence[int]]  # and the chunk of its prompt, for PREFILL
    | tuple[Session, TokenTree, float]  # and what Selection.begin_pass() returns, for TREES
    | tuple[Session]  # for ROUNDS and FEEDS
)
"""A session's entry in the plan of a forward pass."""


class BatchPlan(NamedTuple):
    """The contents of one forward pass, and the sessions that it delays."""

    kind: ForwardKind
    entries: Sequence[PlanEntry]
    delayed: DelayedSessions = DelayedSessions((), 0.0)


class Scheduler:
    """Plans each forward pass by measured times. Kinds of forward passes take turns.

    times: seconds of a forward pass by rows and nodes.
    max_nodes: nodes of one session in one forward pass, the root included.
    """

    def __init__(self, model: Model, times: Times, max_nodes: int) -> None:
        self.times = times
        self._model, self._max_nodes = model, max_nodes
        self._last_run = dict.fromkeys(ForwardKind, 0)  # kind -> number of its last forward pass
        self._forwards = 0
        self._explore: dict[int, tuple[int, int]] = {}  # rows -> passes since, and their bound
        self._roots = {model.padded(rows, 1) for rows in range(1, model.rows + 1)}
        self._trials: dict[int, tuple[int, int]] = {}  # rows -> passes since one, and their bound
        self._last_width = 1  # width of the last forward pass with trees

    def next(self, ready: ReadySets) -> BatchPlan:
        """Plan a forward pass of the ready kind that ran least recently; empty if none is ready."""
        kinds = [kind for kind, sessions in ready.items() if sessions]
        if not kinds:
            return BatchPlan(ForwardKind.TREES, ())
        kind = min(kinds, key=lambda kind: self._last_run[kind])
        self._forwards += 1
        self._last_run[kind] = self._forwards
        if kind is ForwardKind.PREFILL:
            decoding = len(ready.get(ForwardKind.TREES, ()))
            return self._prefill(ready[kind], self._chunk_size(decoding))
        if kind is ForwardKind.TREES:
            return self._trees(ready[kind])
        undrafted = ready[ForwardKind.TREES]
        drafted = len(ready[ForwardKind.ROUNDS]) + len(ready[ForwardKind.FEEDS])
        delayed = DelayedSessions(undrafted, self.seconds(len(undrafted) + drafted, 1))
        return BatchPlan(kind, [(session,) for session in ready[kind]], delayed)

    def record(self, padded: Shape, seconds: float) -> None:
        """Record a forward pass's seconds, the engine's own work included."""
        rows, nodes = padded
        since, interval = self._explore.get(rows, (0, TUNING.first_explore))
        if nodes == self._padded(1, 1)[1]:
            self._explore[rows] = 0, min(2 * interval, TUNING.explore)
        else:
            measured = len(self.times.samples(*padded)) >= TRUSTED
            before = self.times.seconds(*padded)
            # if this time has changed, the time of root-only forward passes may have changed, too
            changed = measured and not 1 / CHANGED < seconds / before < CHANGED
            due = changed and since >= TUNING.first_explore
            self._explore[rows] = interval if due else since + 1, interval
        self.times.observe(*padded, seconds)

    def promised(self, padded: Shape, rows: int, seconds: float) -> float:
        """Return the tokens promised to each session in the time of a recorded forward pass.

        They are min_rate times the tokens that root-only forward passes of as many rows would give
        in this time. For a pass that is itself root-only, they are min_rate.

        seconds: time of the forward pass, as recorded.
        """
        if padded == self._padded(rows, 1):
            return TUNING.min_rate
        return TUNING.min_rate * seconds / max(self.seconds(rows, 1), 1e-9)

    def seconds(self, rows: int, nodes: int) -> float:
        """Return the expected seconds of a forward pass."""
        return self.times.seconds(*self._padded(rows, nodes))

    def _trees(self, ready: Sequence[Session]) -> BatchPlan:
        selection = (best_of if self._model.branches else lines_of)(
            [session.candidates for session in ready],
            [min(self._max_nodes, session.tree_nodes or self._max_nodes) for session in ready],
            [max(session.allowed - 1, 0) for session in ready],
        )
        width = self._last_width = self._width(ready, selection)
        useful = max(width, self._useful_width(len(ready)))
        for session in ready:
            waits = session.order is not None and session.order.pace is Pace.WAIT
            limit = self._max_nodes if waits else useful
            session.room = min(limit, session.tree_nodes or limit) - 1
        trees = zip(ready, selection.begin_pass(width), strict=True)
        return BatchPlan(ForwardKind.TREES, [(session, *tree) for session, tree in trees])

    def _width(self, ready: Sequence[Session], selection: Selection) -> int:
        if all(session.order and session.order.pace is Pace.WAIT for session in ready):
            return selection.longest  # synchronous rounds verify all candidates
        rows = len(ready)
        since, interval = self._explore.get(self._padded(rows, 1)[0], (0, TUNING.first_explore))
        if since >= interval or not self._knows_root(rows):
            return 1
        credit = np.array([session.service_credit + allowed_deficit(session) for session in ready])
        values = selection.values.copy()
        values[:, 1:] *= np.array([session.record.factor for session in ready])[:, None]
        plan = partial(plan_width, values, credit, limit=self._max_nodes, premium=TUNING.premium)
        width = plan(cost=lambda nodes: self.times.cost(*self._padded(rows, nodes)))
        waited, wait = self._trials.get(rows, (0, TUNING.first_explore))
        if waited >= wait:
            trial = plan(cost=lambda nodes: self.times.hope(*self._padded(rows, nodes)))
            if trial > width:
                self._trials[rows] = 0, min(2 * wait, TUNING.explore)
                return trial
        self._trials[rows] = waited + 1, wait
        return width

    def _knows_root(self, rows: int) -> bool:
        """Whether root-only forward passes of this number of rows, or of similar ones that take
        about as long, were measured: all promises are relative to their time.
        """
        measured = [shape for shape in self._roots if len(self.times.samples(*shape)) >= TRUSTED]
        narrower = max((shape for shape in measured if shape[0] <= rows), default=None)
        wider = min((shape for shape in measured if shape[0] >= rows), default=None)
        if narrower is None or wider is None:
            return False
        return self.times.seconds(*wider) <= CHANGED * self.times.seconds(*narrower)

    def _useful_width(self, rows: int) -> int:
        """Return the width of the widest pass that would pay if all candidates were accepted."""
        width, root_only = self._max_nodes, self.seconds(rows, 1)
        while width > 1 and self.seconds(rows, width) > width * root_only:
            width //= 2
        return width

    def _chunk_size(self, decoding: int) -> int:
        """Return the prompt tokens in a forward pass: the model's maximum, or fewer while sessions
        decode, or if a long context makes them slow.
        """
        size, allowed = self._model.max_nodes, TUNING.max_chunk_seconds
        if decoding:
            share = TUNING.prefill_share * self.seconds(decoding, self._last_width)
            allowed = min(allowed, share)
        while size > TUNING.min_chunk and self.seconds(1, size) > allowed:
            size //= 2
        return size

    def _prefill(self, filling: Sequence[Session], limit: int) -> BatchPlan:
        """Add chunks of prompts in order of arrival, until the forward pass is full.

        Rows times the longest chunk stay within `limit` tokens. A chunk whose tokens are all scored
        has no more nodes than a tree.
        """
        chunks: list[tuple[Session, list[int]]] = []
        longest = 0
        for session in filling:
            size = min(limit, self._max_nodes) if session.prompt_scores.missing else limit
            longest = max(longest, min(size, session.missing))
            if chunks and longest * (len(chunks) + 1) > limit:
                break
            chunks.append((session, session.next_chunk(size)))
        return BatchPlan(ForwardKind.PREFILL, chunks)

    def _padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)
