"""A proposer for a target that waits, which drafts ahead while the verdict is under way.

A Rule says what tree is grown and what is drafted ahead; those of other systems are in
rival_trees.py and rival_chains.py. What lies below the token that the target then takes serves the
next round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from benchmarks.regret.dial import GUESSES
from benchmarks.regret.growth import Growth
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.drafters.tree_policies import edge_values
from inference.proposer import BASE, MODEL, Nodes, Notice, Proposal
from inference.sampling import SamplingParams

LATEST = 0.2
"""Weight of the latest round in the moving averages that rules keep."""


class Rule:
    """Decides what a BettingProposer drafts. By itself it drafts nothing while it waits, and learns
    nothing.

    decay: of a node's value with each level.  ranked: nodes whose children are known.  deepest: no
    node below this depth is wanted.
    """

    decay = 1.0

    def expand(self, growth: Growth, ranked: Collection[int], deepest: int) -> list[int]:
        """Nodes to rank in the next call, none of which was and none of depth `deepest`; none
        ends the drafting.
        """
        raise NotImplementedError

    def select(self, growth: Growth, deepest: int) -> list[int]:
        """Nodes to send, the root first, parents before children."""
        raise NotImplementedError

    def sent(self, nodes: int, now: float) -> None:
        """A tree of so many nodes below the root is on its way."""

    def ahead(
        self,
        growth: Growth,
        ranked: Collection[int],
        sent: Sequence[int],
        deepest: int,
        now: float,
    ) -> list[int]:
        """Nodes to rank while the verdict is under way; none to wait for it."""
        return []

    def arrived(self, expected: float, accepted: int, seconds: float, forward: float) -> None:
        """The verdict is here after so long: values of the sent nodes added up, how many of them
        were accepted, and what the target's forward took.
        """


class Subtree(NamedTuple):
    """The part of a Growth below one of its nodes, and where its nodes were before."""

    growth: Growth
    place: dict[int, int]  # index in the old growth -> index in this one


def under(growth: Growth, node: int) -> Subtree:
    """The tree below `node`, which becomes the root: the target's path has reached it."""
    place = {node: 0}
    for old in range(node + 1, len(growth)):
        if growth.parents[old] in place:
            place[old] = len(place)
    below = Growth(growth.tokens[node], growth.limit)
    below.tokens = [growth.tokens[old] for old in place]
    below.parents = [place.get(growth.parents[old], -1) for old in place]
    below.values = [growth.values[old] / growth.values[node] for old in place]
    below.depths = [growth.depths[old] - growth.depths[node] for old in place]
    return Subtree(below, place)


class _Row(ModelSequence):
    """A row whose nodes may get other numbers."""

    def renumber(self, place: Mapping[int, int]) -> None:
        """place: old -> new number of every node that has a slot, and of others."""
        self._node_slots = {place[old]: slot for old, slot in self._node_slots.items()}


class BettingProposer:
    """A Proposer on row 0 of a draft model; ranks children under the target's own noise, as every
    proposer here.

    rounds: answered.  hits: of these, whose next root was ranked ahead.  room: nodes of a forward
    below its root.
    """

    kind = MODEL
    drafting = 0.0

    _root_at: int  # position of the root
    _end: int
    _growth: Growth  # under the root
    _ranked: set[int]  # its nodes whose children are known
    _selected: list[int] | None  # nodes that are to be sent, once the tree is drafted
    _sent: list[int] | None  # the same once they are sent
    _sent_at: float

    def __init__(self, model: Model, rule: Rule, room: int) -> None:
        self.calls = self.rounds = self.hits = 0
        self._model, self._rule, self._room = model, rule, room
        self._sequence = _Row(model, 0, SamplingParams())
        self._begin(0, 0, 0)

    @property
    def drafts(self) -> bool:
        """It has nothing under way: whoever waits for an answer now waits in vain."""
        return self._sent is None

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._sequence = _Row(self._model, 0, params)
        self._begin(prompt[-1], len(prompt) - 1, self._model.capacity if end is None else end)
        self._sequence.extend(prompt[:-1])

    def work(self, now: float) -> bool:
        growth, deepest = self._growth, self._deepest
        if self._sent is not None:
            nodes = self._rule.ahead(growth, self._ranked, self._sent, deepest, now)
        elif self._selected is None:
            growth.limit = self._room if deepest else 0
            nodes = self._rule.expand(growth, self._ranked, deepest) if deepest else []
            if not nodes:
                self._selected = self._rule.select(growth, deepest)
        else:
            return False
        if nodes:
            self._rank(nodes)
        return bool(nodes)

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        if self._selected is None or self._sent is not None:
            return None
        self._sent, self._sent_at = self._selected, now
        self._rule.sent(len(self._sent) - 1, now)
        return self._message(self._sent, next_number) if len(self._sent) > 1 else None

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        growth, path, sent = self._growth, list[int](), self._sent
        assert sent is not None, "a target that waits answers what was sent"
        for token in tokens[:-1]:
            child = growth.child(path[-1] if path else 0, token)
            assert child is not None, "only what was sent is accepted"
            path.append(child)
        expected = sum(growth.values[node] for node in sent[1:])
        self._rule.arrived(expected, len(path), now - self._sent_at, notice.model_seconds)
        self.rounds += 1
        self._take(path, tokens[-1])
        self._root_at += len(tokens)

    def resend(self) -> None:
        raise NotImplementedError("the study's target never loses anything")

    def close(self) -> None:
        self._sequence = _Row(self._model, 0, SamplingParams())
        self._begin(0, 0, 0)

    def _begin(self, root: int, position: int, end: int) -> None:
        self._root_at, self._end = position, end
        self._forget(root)

    def _forget(self, root: int) -> None:
        self._growth, self._ranked = Growth(root, 0), set()
        self._sent = self._selected = None
        self._sent_at = 0.0

    @property
    def _deepest(self) -> int:
        return max(self._end - 2 - self._root_at, 0)  # the target adds a token of its own

    def _take(self, path: Sequence[int], token: int) -> None:
        """The target has accepted this path and added a token."""
        growth = self._growth
        bet = growth.child(path[-1] if path else 0, token)
        if bet is None or bet not in self._ranked:
            self._sequence.commit(growth, path)
            return self._forget(token)
        subtree, kept = under(growth, bet), [0, *path]
        gone = self._ranked - {*kept, *subtree.place}
        tokens = [growth.tokens[node] for node in kept]
        self._sequence.advance([node for node in kept if node in self._ranked], tokens, [*gone])
        self._sequence.renumber(subtree.place)
        self.hits += 1
        ranked = {subtree.place[node] for node in self._ranked if node in subtree.place}
        self._forget(token)
        self._growth, self._ranked = subtree.growth, ranked

    def _rank(self, nodes: Sequence[int]) -> None:
        self.calls += 1
        ranked = self._sequence.rank(self._growth, nodes, GUESSES)
        edges = edge_values(ranked.scores) * self._rule.decay
        self._ranked |= set(nodes)
        for node, ids, chances in zip(nodes, ranked.ids.tolist(), edges.tolist(), strict=True):
            for token, edge in zip(ids, chances, strict=True):
                if self._growth.values[node] * edge > 0:
                    self._growth.add(node, token, edge)

    def _message(self, sent: Sequence[int], next_number: Callable[[], int]) -> Nodes:
        growth, numbers, proposals = self._growth, {0: BASE}, list[Proposal]()
        for node in sent[1:]:
            above, numbers[node] = growth.parents[node], next_number()
            chance = growth.values[node] / growth.values[above]
            proposals.append(Proposal(numbers[node], numbers[above], growth.tokens[node], chance))
        return Nodes(self._root_at, proposals, self.kind)
