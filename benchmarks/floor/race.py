"""Texts on the real engine, on a virtual clock, by a law of time: with a scripted draft, and with
root-only forwards alone.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from benchmarks.capacity.script import VOCABULARY, ScriptedTarget
from benchmarks.floor.laws import Law, Machine
from inference.backends import Chosen, Segment
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.order import Decode, End
from inference.proposer import BASE, Nodes, Proposal
from inference.sampling import SamplingParams
from inference.times import Shape, Times

MOST_NODES, CHUNK = 64, 256
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


class Clock:
    """Virtual seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedTarget(ScriptedTarget):
    """A Model whose next token depends on seed, position and token, and whose time on a machine.

    made: rows and nodes of each forward that chose tokens
    """

    def __init__(self, rows: int, machine: Machine, clock: Clock) -> None:
        super().__init__(rows, LENGTH + MOST_NODES, CHUNK)
        self._machine, self._clock = machine, clock
        self.made = list[Shape]()

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        nodes = max(len(segment.tokens) for segment in segments)
        self._clock.now += self._machine.seconds(len(segments), nodes, self._clock.now)
        self.made.append((len(segments), nodes))
        return [
            Chosen(
                np.array(
                    [
                        mixed(one.params.seed, int(one.positions[at]), int(one.tokens[at]))
                        % VOCABULARY
                        for at in one.pick
                    ],
                    dtype=np.int32,
                )
            )
            for one in segments
        ]


class Skill(NamedTuple):
    """How often a draft is right, and what it claims.

    sure: share of positions at which its first guess is right with the first chance, else with
        the second
    right: the two chances
    claims: what it claims of its first guess in the two cases
    """

    sure: float
    right: tuple[float, float]
    claims: tuple[float, float]


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
        self._order = count()
        self._begin(session.length)

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

    def _begin(self, length: int) -> None:
        root = _Node(length - 1, self._session.tokens[length - 1], BASE, 1.0, True)
        self._base, self._unranked, self._children = length - 1, [(-1.0, 0, root)], [root]
        self._values = {length - 1: 1.0}

    def _hear(self, length: int) -> None:
        """Re-root where the text went on by the draft's own nodes; else begin anew."""
        known = {(one.position, one.token): one for one in self._children if one.true}
        root = known.get((length - 1, self._session.tokens[length - 1]))
        if root is None:
            self._begin(length)
            return
        self._base = length - 1
        kept = [one for one in self._children if one.position >= length - 1 and one.true]
        self._children = kept
        self._unranked = [
            (value, order, one)
            for value, order, one in self._unranked
            if one.true and one.position >= length - 1
        ]
        heapq.heapify(self._unranked)
        self._values = {length - 1: root.value}

    def _call(self) -> bool:
        floor = LEAST_VALUE * next(iter(self._values.values()))
        chosen = list[_Node]()
        while self._unranked and len(chosen) < RANKED and -self._unranked[0][0] >= floor:
            chosen.append(heapq.heappop(self._unranked)[2])
        if not chosen or chosen[0].position - self._base > 24:
            return False
        self._free_at += self._law.one * CALL * (1 + CALL_NODE * (len(chosen) - 1))
        proposals = list[Proposal]()
        for node in chosen:
            for token, chance, true in self._guesses(node):
                value = node.value * chance
                if value < floor:
                    continue
                child = _Node(node.position + 1, token, next(self._numbers), value, true)
                parent = BASE if node.position == self._base else node.number
                proposals.append(Proposal(child.number, parent, token, chance))
                heapq.heappush(self._unranked, (-value, next(self._order), child))
                self._children.append(child)
        if proposals:
            nodes = Nodes(self._base, proposals)
            self._on_way.append((self._free_at + ROUND_TRIP / 2, nodes))
        return True

    def _guesses(self, node: _Node) -> list[tuple[int, float, bool]]:
        """Children of a node: token, claimed chance, and whether the target chooses it."""
        seed, skill = self._session.params.seed, self._skill
        right = mixed(seed, node.position, node.token) % VOCABULARY
        case = int(mixed(seed ^ 0x5EED, node.position, node.token) >= skill.sure * 2**32)
        drawn = mixed(seed ^ 0xD4A3, node.position, node.token) / 2**32
        first, claim = skill.right[case], skill.claims[case]
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


class Made(NamedTuple):
    """When each token of a text came, and the forwards. Seconds since the first order.

    at: [tokens] seconds without pauses of the machine
    forwards: [forwards] rows and nodes
    """

    at: list[float]
    forwards: list[Shape]

    def tokens_by(self, seconds: float) -> float:
        """Tokens that had come after so many seconds, parts of a token included."""
        index = bisect_right(self.at, seconds)
        if index == len(self.at):  # at the same rate
            return index * seconds / self.at[-1]
        before = self.at[index - 1] if index else 0.0
        return index + (seconds - before) / max(self.at[index] - before, 1e-12)


def race(
    law: Law,
    times: Times,
    skill: Skill | None,
    sessions: int,
    tokens: int,
    seed: int,
) -> list[Made]:
    """Make one text in each session.

    times: what the engine believes at the start
    skill: of the draft; None for root-only forwards
    """
    clock, machine = Clock(), Machine(law, seed)
    model = TimedTarget(sessions, machine, clock)
    engine = Engine(
        model,
        sequence_length=LENGTH,
        max_tree_nodes=MOST_NODES,
        vocabulary=VOCABULARY,
        times=times,
        clock=clock,
    )
    opened = list[Session]()
    for number in range(sessions):
        params = SamplingParams(1.0, seed=1 + 1000 * seed + number)
        session, future = engine.open([number + 1, 2, 3], params)
        engine.finish(future)
        opened.append(session)
    start, paused = clock.now, machine.paused
    model.made.clear()
    for session in opened:
        engine.decode(session, Decode(session.length + tokens, credit=CREDIT))
    drafts = [ScriptedDraft(skill, one, engine, law, clock.now) for one in opened] if skill else []
    arrivals: list[list[float]] = [[] for _ in opened]
    while any(one.end is End.NOT for one in opened):
        for draft in drafts:
            draft.until(clock.now)
        assert engine.step(), "somebody can go on"
        now = clock.now - start - (machine.paused - paused)
        for index, session in enumerate(opened):
            fresh = session.length - session.prompt_length - len(arrivals[index])
            arrivals[index] += [now] * fresh
            engine.acknowledge(session, session.length)
            if fresh and drafts:
                drafts[index].committed(clock.now)
    return [Made(at, model.made) for at in arrivals]
