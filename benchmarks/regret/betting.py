"""A drafter that makes one bet a round: while the verdict is under way it drafts on below one leaf and one token after it.

What tree is grown, and what is bet on, a Rule says. The rules of others are in rivals.py; ours bets on many outcomes
(inference/drafters/adaptive.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from benchmarks.regret.dial import GUESSES
from inference.accept import Verdict
from inference.backends import Model
from inference.growth import Growth
from inference.pilot import Drafted
from inference.policy import Budget, Ranked, edge_values
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class Rule(Protocol):
    """Decides what a BettingDrafter drafts."""

    decay: float  # of a node's value with each level

    def expand(self, growth: Growth, ranked: Collection[int], deepest: int) -> list[int]:
        """Nodes to rank in the next call, none of which was and none of depth `deepest`; none ends the drafting."""
        ...

    def select(self, growth: Growth, deepest: int) -> list[int]:
        """Nodes to send, the root first, parents before children."""
        ...

    def leaves(self, growth: Growth, sent: Sequence[int]) -> list[int]:
        """Sent nodes below which the bet may lie."""
        ...

    def goes_on(self, chance: float) -> bool:
        """Whether another call of the draft below a bet of this chance is worth it."""
        ...

    def sent(self, nodes: int) -> None:
        """A tree of so many nodes below the root is on its way."""
        ...

    def arrived(self, expected: float, accepted: int) -> None:
        """Its verdict is here: values of the sent nodes added up, and how many of them were accepted."""
        ...


class BettingDrafter:
    """A Drafter on row 0 of a draft model; ranks children under the target's own noise, as every drafter here."""

    def __init__(self, model: Model, rule: Rule) -> None:
        self.bets = Drafted()
        self._model, self._rule = model, rule
        self._sequence: ModelSequence | None = None
        self._growth = Growth(0, 0)
        self._ranked: dict[int, Ranked] = {}  # [1, GUESSES] of each node that was ranked
        self._sent, self._deepest = [0], 0
        self._bet: int | None = None  # the node that is bet on, once it is chosen
        self._prepared: set[int] = set()  # ranked while the verdict was under way

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._sequence = ModelSequence(self._model, 0, params)
        self._forget(prompt[-1])
        self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        growth = self._growth
        growth.limit, self._deepest = budget.nodes, budget.depth
        while budget.nodes and (
            nodes := self._rule.expand(growth, self._ranked.keys(), budget.depth)
        ):
            self._rank(nodes)
        self._sent = self._rule.select(growth, budget.depth)
        self._rule.sent(len(self._sent) - 1)
        return growth.tree.select(self._sent)

    def ahead(self) -> bool:
        nodes = self._next_ahead()
        if not nodes:
            return False
        self._rank(nodes)
        self._prepared |= set(nodes)
        self.bets.calls += 1
        return True

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        growth, path = self._growth, [self._sent[node] for node in verdict.path]
        self._rule.arrived(sum(growth.values[node] for node in self._sent[1:]), len(path))
        bet = self._bet
        hit = (
            bet is not None
            and bet in self._ranked
            and growth.parents[bet] == ([0, *path][-1])
            and growth.tokens[bet] == verdict.next_token
        )
        self.bets.rounds += 1
        self.bets.prepared += len(self._prepared)
        if bet is None or not hit:
            self._live.commit(growth.tree, path)
            self._forget(verdict.next_token)
            return
        subtree = growth.under(bet)
        self._live.commit(growth.tree, path, subtree.place)
        self.bets.hits += 1
        self.bets.used += len(self._prepared & subtree.place.keys())
        ranked = {
            subtree.place[node]: row for node, row in self._ranked.items() if node in subtree.place
        }
        self._forget(verdict.next_token)
        self._growth, self._ranked = subtree.growth, ranked

    def close(self) -> None:
        self._sequence = None

    def _forget(self, root: int) -> None:
        self._growth, self._ranked, self._sent = Growth(root, 0), {}, [0]
        self._bet, self._prepared = None, set()

    def _next_ahead(self) -> list[int]:
        """What the next call ranks: leaves whose children are not known yet, then the bet, then what is below it."""
        growth = self._growth
        if self._bet is None:
            leaves = [
                node
                for node in self._rule.leaves(growth, self._sent)
                if growth.depths[node] < self._deepest - 1
            ]
            unknown = [node for node in leaves if node not in self._ranked]
            if unknown:
                return (
                    unknown
                    if self._rule.goes_on(max(growth.values[node] for node in unknown))
                    else []
                )
            self._bet = self._best_child(leaves)
        if self._bet is None or not self._rule.goes_on(growth.values[self._bet]):
            return []
        if self._bet not in self._ranked:
            return [self._bet]
        subtree = growth.under(self._bet)
        old = {new: node for node, new in subtree.place.items()}
        ranked = {subtree.place[node] for node in self._ranked if node in subtree.place}
        return [
            old[node]
            for node in self._rule.expand(
                subtree.growth, ranked, self._deepest - growth.depths[self._bet]
            )
        ]

    def _best_child(self, leaves: Sequence[int]) -> int | None:
        growth, held, below = self._growth, set(self._sent), set(leaves)
        children = [
            node
            for node in range(1, len(growth))
            if growth.parents[node] in below and node not in held
        ]
        return max(children, key=lambda node: growth.values[node], default=None)

    def _rank(self, nodes: Sequence[int]) -> None:
        ranked = self._live.rank(self._growth.tree, nodes, GUESSES)
        edges = edge_values(ranked.scores) * self._rule.decay
        for row, node in enumerate(nodes):
            self._ranked[node] = Ranked(ranked.ids[row : row + 1], ranked.scores[row : row + 1])
            for token, edge in zip(ranked.ids[row].tolist(), edges[row].tolist(), strict=True):
                if self._growth.values[node] * edge > 0:
                    self._growth.add(node, token, edge)

    @property
    def _live(self) -> ModelSequence:
        assert self._sequence is not None, "open() comes first"
        return self._sequence
