"""Texts on the real engine, on a virtual clock, by a law of time: with a scripted draft, and with
root-only forwards alone.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from benchmarks.floor.laws import Law, Machine
from benchmarks.regret.clock import VirtualClock
from inference.backends import Chosen, Ranked, Segment
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, End
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.token_tree import IntArray

VOCABULARY, MOST_NODES, CHUNK = 32_000, 64, 256
LENGTH = 2_048
ROUND_TRIP = 0.02  # seconds
CALL, CALL_NODE = 1 / 8, 0.1
"""Time of a draft's call of one node, in forwards of one node; and what each further node adds."""

SECOND = 0.5
"""Chance that the second guess is right where the first is not."""

RANKED = 4  # nodes of a draft's call
CREDIT = 512
LEAST_VALUE = 0.005  # of a node that is sent


def mixed(seed: int, position: int, token: int) -> int:
    """Return 32 bits, evenly spread."""
    word = (seed * 0x9E3779B1 + position * 0x85EBCA77 + token * 0xC2B2AE3D) & 0xFFFFFFFF
    word = ((word ^ (word >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    word = ((word ^ (word >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    return word ^ (word >> 15)


class ScriptedTarget:
    """A Model whose next token depends on seed, position and token.

    spend: takes the time of a forward pass of so many rows and nodes
    """

    capacity, max_nodes = LENGTH + MOST_NODES, CHUNK
    masks, branches = False, True

    def __init__(self, rows: int, spend: Callable[[int, int], None] = lambda rows, nodes: None):
        self.rows, self._spend = rows, spend

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self._spend(len(segments), max(len(segment.tokens) for segment in segments))
        return [Chosen(next_tokens(segment)) for segment in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError("this model is a target")

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """There are no keys."""


def next_tokens(segment: Segment) -> IntArray:  # [p]
    """Return the target's token behind each picked node."""
    seed, positions, tokens = segment.params.seed, segment.positions, segment.tokens
    chosen = [mixed(seed, int(positions[at]), int(tokens[at])) % VOCABULARY for at in segment.pick]
    return np.array(chosen, dtype=np.int32)


class Skill(NamedTuple):
    """How often a draft is right, and what it claims.

    sure: share of positions at which its first guess is right with the first chance, else with
        the second
    right: the two chances
    claims: what it claims of its first guess in the two cases
    works: at which positions it can be right at all
    """

    sure: float
    right: tuple[float, float]
    claims: tuple[float, float]
    works: Callable[[int], bool] = lambda position: True


SKILLS = {
    "right": Skill(0.6, (0.95, 0.45), (0.95, 0.45)),
    "useless": Skill(0.6, (0.0, 0.0), (0.6, 0.3)),
    "overclaiming": Skill(0.6, (0.35, 0.25), (0.95, 0.6)),
}


class _Node(NamedTuple):
    """A node of a draft's tree. true: whether it lies on the target's own way."""

    position: int
    token: int
    number: int
    value: float
    true: bool


class ScriptedDraft:
    """A draft of one session: calls one after the other on a time line of its own."""

    def __init__(
        self, skill: Skill, session: Session, engine: Engine, law: Law, now: float
    ) -> None:
        self._skill, self._session, self._engine, self._law = skill, session, engine, law
        self._stream, self._numbers = engine.join(session), count()
        self._free_at, self._heard = now, list[tuple[float, int]]()
        self._on_way = list[tuple[float, Nodes]]()
        self._children, self._unranked = list[_Node](), list[tuple[float, int, _Node]]()
        self._hear(session.length)

    def committed(self, now: float) -> None:
        """The target has committed tokens: the draft hears of them half a round trip later."""
        self._heard.append((now + ROUND_TRIP / 2, self._session.length))

    def until(self, now: float) -> None:
        """Make the calls that begin before `now`, and deliver what has arrived by then."""
        while self._free_at < now:
            while self._heard and self._heard[0][0] <= self._free_at:
                self._hear(self._heard.pop(0)[1])
            if not self._call():
                self._free_at = min(self._heard[0][0], now) if self._heard else now
        while self._on_way and self._on_way[0][0] <= now:
            self._engine.append(self._session, self._stream, self._on_way.pop(0)[1])

    def _hear(self, length: int) -> None:
        """Re-root where the text went on by the draft's own nodes; else begin anew."""
        base, token = length - 1, self._session.tokens[length - 1]
        self._children = [one for one in self._children if one.true and one.position >= base]
        self._unranked = [
            one for one in self._unranked if one[-1].true and one[-1].position >= base
        ]
        heapq.heapify(self._unranked)
        nodes = (one for one in self._children if (one.position, one.token) == (base, token))
        root = next(nodes, None)
        if root is None:
            root = _Node(base, token, -1, 1.0, True)
            self._children, self._unranked = [root], [(-1.0, 0, root)]
        self._base, self._floor = base, LEAST_VALUE * root.value

    def _call(self) -> bool:
        chosen = list[_Node]()
        while self._unranked and len(chosen) < RANKED and -self._unranked[0][0] >= self._floor:
            chosen.append(heapq.heappop(self._unranked)[2])
        if not chosen or chosen[0].position - self._base > 24:
            return False
        self._free_at += self._law.one * CALL * (1 + CALL_NODE * (len(chosen) - 1))
        columns, first = list[tuple[int, int, float]](), -1
        for node in chosen:
            for token, chance, true in self._guesses(node):
                value = node.value * chance
                if value < self._floor:
                    continue
                child = _Node(node.position + 1, token, next(self._numbers), value, true)
                back = 0 if node.position == self._base else child.number - node.number
                first = child.number if not columns else first
                columns.append((back, token, chance))
                heapq.heappush(self._unranked, (-value, child.number, child))
                self._children.append(child)
        if columns:
            parents, tokens, chances = zip(*columns, strict=True)
            nodes = Nodes(self._base, first, parents, tokens, chances)
            self._on_way.append((self._free_at + ROUND_TRIP / 2, nodes))
        return True

    def _guesses(self, node: _Node) -> list[tuple[int, float, bool]]:
        """Children of a node: token, claimed chance, and whether the target chooses it."""
        seed, skill = self._session.params.seed, self._skill
        right = mixed(seed, node.position, node.token) % VOCABULARY
        case = int(mixed(seed ^ 0x5EED, node.position, node.token) >= skill.sure * 2**32)
        drawn = mixed(seed ^ 0xD4A3, node.position, node.token) / 2**32
        first = skill.right[case] if skill.works(node.position) else 0.0
        claim = skill.claims[case]
        second = first + SECOND * (1 - first) if first else 0.0
        hit = 0 if drawn < first else 1 if drawn < second else 2
        if not node.true:
            hit = 2
        tokens = [(right + 1) % VOCABULARY, (right + 2) % VOCABULARY]
        if hit < 2:
            tokens[hit] = right
        claims = (claim, SECOND * (1 - claim))
        return [
            (token, chance, node.true and index == hit)
            for index, (token, chance) in enumerate(zip(tokens, claims, strict=True))
        ]


def tokens_by(at: Sequence[float], seconds: float) -> float:
    """Tokens of a text that had come after so many seconds, parts of a token included.

    at: [tokens] seconds since the first order
    """
    index = bisect_right(at, seconds)
    if index == len(at):  # at the same rate
        return index * seconds / at[-1]
    before = at[index - 1] if index else 0.0
    return index + (seconds - before) / max(at[index] - before, 1e-12)


def race(
    machine: Machine,
    times: Times,
    skill: Skill | None,
    sessions: int,
    tokens: int,
    seed: int,
) -> list[list[float]]:  # [sessions, tokens]
    """Generate one text in each session. Returns when each token came, in seconds since the first
    order without pauses of the machine.

    times: what the engine believes at the start
    skill: of the draft; None for root-only forward passes
    """
    clock, law = VirtualClock(), machine.law

    def spend(rows: int, nodes: int) -> None:
        clock.advance(machine.seconds(rows, nodes, clock.now()))

    model = ScriptedTarget(sessions, spend)
    engine = Engine(
        model,
        sequence_length=LENGTH,
        max_tree_nodes=MOST_NODES,
        vocabulary=VOCABULARY,
        times=times,
        clock=clock.now,
    )
    opened = list[Session]()
    for number in range(sessions):
        params = SamplingParams(1.0, seed=1 + 1000 * seed + number)
        session, future = engine.open([number + 1, 2, 3], params)
        engine.finish(future)
        opened.append(session)
    start, paused = clock.now(), machine.paused
    for session in opened:
        engine.decode(session, Decode(session.length + tokens, credit=CREDIT))
    drafts = (
        [ScriptedDraft(skill, one, engine, law, clock.now()) for one in opened] if skill else []
    )
    arrivals: list[list[float]] = [[] for _ in opened]
    while any(one.end is End.NOT for one in opened):
        for draft in drafts:
            draft.until(clock.now())
        assert engine.step(), "somebody can go on"
        now = clock.now() - start - (machine.paused - paused)
        for index, session in enumerate(opened):
            fresh = session.length - session.prompt_length - len(arrivals[index])
            arrivals[index] += [now] * fresh
            engine.acknowledge(session, session.length)
            if fresh and drafts:
                drafts[index].committed(clock.now())
    return arrivals
