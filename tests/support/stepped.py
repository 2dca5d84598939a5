"""A target, its proposers and the way between them, stepped one event at a time: no threads, no
clock of the machine, no network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inference.accept import accept_match
from inference.candidates import CandidateTree
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.engine.snapshot import best_of
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.proposer import BASE, Nodes, Notice, Proposal, Proposer
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.support.scripted_models import Says, ScriptedModel, target_token

SAMPLING = SamplingParams()
PROMPT = [3, 1, 4, 1, 5]
CALL, FORWARD, ROUND_TRIP = 0.01, 0.03, 0.04


def knowledge(times: float = 1.0) -> Knowledge:
    """times: how far all that is believed is off."""
    return Knowledge(
        DraftTimes({1: CALL * times}),
        LatencyModel({(1, 1): FORWARD * times, (1, 64): FORWARD * times}),
        read_acceptance(),
        ROUND_TRIP * times,
    )


def scripted_proposer(
    says: Says, *, times: float = 1.0, prices: Prices | None = None, room: int = 200
) -> GrowingProposer:
    model = ScriptedModel(says, capacity=512 + room)
    ticks = iter(range(10**9))
    return Draft(model).proposer(
        0,
        knowledge(times),
        prices or Prices(),
        room=room,
        clock=lambda: next(ticks) * CALL * times,
    )


class SteppedTarget:
    """One session: it commits what its hash says, and never more than it may.

    end: length of the text.  credit: tokens beyond the acknowledged one.
    """

    def __init__(self, prompt: Sequence[int], end: int, credit: int, most: int = 1024) -> None:
        self.tokens = list(prompt)
        self.tree = CandidateTree(self.tokens, most)
        self.end, self.credit, self.acknowledged = end, credit, len(prompt) - 1
        self.arrived: dict[int, int] = {}  # by stream: numbers below this one
        self.forwards = self.accepted = self.lone = 0

    @property
    def may(self) -> int:
        """Tokens that the next forward may commit."""
        return min(self.end - len(self.tokens), self.acknowledged + self.credit - self.position)

    @property
    def position(self) -> int:
        return len(self.tokens) - 1

    def join(self, stream: int) -> None:
        self.tree.join(stream)
        self.arrived[stream] = 0

    def append(self, stream: int, nodes: Nodes) -> None:
        self.tree.append(stream, nodes, lambda proposer, depth, claimed: claimed)
        if stream in self.arrived:
            self.arrived[stream] = max(self.arrived[stream], nodes.proposals[-1].number + 1)

    def forward(self, most: int) -> Told | None:
        """One forward over so many nodes, the root among them; None where it may not."""
        if self.may < 1:
            return None
        before, known = len(self.tokens), dict(self.arrived)
        [snapshot] = best_of([self.tree], [most], [self.may - 1]).snapshots(most)
        self.tree.take(snapshot.places)
        tree, prefixes = snapshot.tree, [tuple(self.tokens)]
        for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
            prefixes.append((*prefixes[parent], token))
        chosen = np.array([target_token(prefix) for prefix in prefixes], dtype=np.int32)
        verdict = accept_match(tree, chosen)
        self.tree.advance([*tree.tokens[list(verdict.path)].tolist(), verdict.next_token])
        self.forwards, self.accepted = self.forwards + 1, self.accepted + len(verdict.path)
        self.lone += len(tree) == 1
        return Told(before, self.tokens[before:], known, self.tree.live)


@dataclass(frozen=True)
class Told:
    """What one forward tells."""

    position: int
    tokens: list[int]
    known: dict[int, int]
    held: int


@dataclass
class Stream:
    """A way to the target: messages in order, of one or more proposers."""

    number: int
    messages: deque[Nodes] = field(default_factory=deque)
    numbers: int = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers - 1


class World:
    """Proposers on streams of one session, and what is under way between them."""

    def __init__(
        self, proposers: Sequence[Proposer], streams: Sequence[int], target: SteppedTarget
    ) -> None:
        self.target, self.proposers, self.now = target, proposers, 0.0
        self.streams = {one: Stream(one) for one in set(streams)}
        self.stream_of = list(streams)
        self.inboxes: list[deque[Told]] = [deque() for _ in proposers]
        self.sent: list[tuple[int, Nodes]] = []
        self._next_stream = max(streams) + 1
        for stream in self.streams:
            target.join(stream)
        for proposer in proposers:
            proposer.open(target.tokens, SAMPLING, target.end)

    def forward(self, most: int = 64) -> bool:
        self.now += FORWARD
        told = self.target.forward(most)
        if told is not None:
            for inbox in self.inboxes:
                inbox.append(told)
        return told is not None

    def hear(self, index: int, messages: int = 1) -> None:
        """So many messages reach a proposer as one."""
        inbox = self.inboxes[index]
        told = [inbox.popleft() for _ in range(min(messages, len(inbox)))]
        if told:
            tokens = [token for one in told for token in one.tokens]
            known = told[-1].known.get(self.stream_of[index], 0)
            notice = Notice(self.now, FORWARD, known, told[-1].held, 64)
            self.proposers[index].hear(told[0].position, tokens, self.now, notice)

    def work(self, index: int) -> bool:
        self.now += CALL
        return self.proposers[index].work(self.now)

    def flush(self, index: int, now: float | None = None) -> Nodes | None:
        """What the proposer sends, at this time or another."""
        stream = self.streams[self.stream_of[index]]
        at = self.now if now is None else now
        nodes = self.proposers[index].flush(at, stream.next_number)
        if nodes is not None:
            stream.messages.append(nodes)
            self.sent.append((stream.number, nodes))
        return nodes

    def deliver(self, index: int, *, lost: bool = False, twice: bool = False) -> None:
        """The oldest message of a proposer's stream arrives, or does not."""
        stream = self.streams[self.stream_of[index]]
        if stream.messages:
            nodes = stream.messages.popleft()
            for _ in range(0 if lost else 1 + twice):
                self.target.append(stream.number, nodes)

    def reconnect(self, index: int) -> None:
        """The proposer's stream breaks; what was under way may still come, and is of no use."""
        old = self.streams.pop(self.stream_of[index])
        new = Stream(self._next_stream)
        self._next_stream += 1
        self.target.tree.leave(old.number)
        self.target.arrived.pop(old.number)
        self.streams[new.number] = new
        self.target.join(new.number)
        for nodes in old.messages:
            self.target.append(old.number, nodes)
        for other, number in enumerate(self.stream_of):
            if number == old.number:
                self.stream_of[other] = new.number
                self.proposers[other].hear(0, (), self.now, None)

    def turn(self) -> None:
        """One forward, as on a good day: three calls of each draft meanwhile, nothing is lost."""
        for index in range(len(self.proposers)):
            self.hear(index, len(self.inboxes[index]))
        self.target.acknowledged = self.target.position
        began = self.now
        self.forward()
        self.now = began
        told = [inbox.pop() for inbox in self.inboxes if inbox]
        for _ in range(3):
            self.now += CALL
            for index in range(len(self.proposers)):
                self.proposers[index].work(self.now - CALL)
                self.flush(index)
            for stream in self.streams.values():
                while stream.messages:
                    self.target.append(stream.number, stream.messages.popleft())
        for inbox, one in zip(self.inboxes, told, strict=False):
            inbox.append(one)


def hostile(base: int, numbers: Sequence[int], dice: Sequence[int], chance: float) -> Nodes:
    """Nodes of somebody who knows no rules but those of the types."""
    proposals = [
        Proposal(number, BASE if one % 3 == 0 else numbers[one % len(numbers)], one % 40, chance)
        for number, one in zip(numbers, dice, strict=True)
    ]
    return Nodes(base, proposals, 2)
