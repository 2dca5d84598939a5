"""Drafting as a Pilot decides: one list of nodes, most valuable first, that serves the tree and the bets.

A tree grows call by call of the draft model, always at the most valuable nodes. When it is sent, growing goes on at the same list: what
comes next in it are the likeliest outcomes of the round and what follows them. The verdict then keeps the part under the node that it
names, keys included, and that is the beginning of the next tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.accept import Verdict
from inference.backends import Model
from inference.growth import Frontier, Growth
from inference.pilot import WIDTH, Drafted, Pilot
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree

MOST_RANKED, MOST_OF_A_TREE = 768, 128
"""Nodes whose keys the draft may hold beyond the committed ones: in all, and before a tree is sent that will be bet on."""

WIDEST = 32
"""Nodes ranked in one call."""

MOST_FLIGHTS = 8
"""Trees under way at once."""

LEAST_VALUE = 2e-3
"""Of a node that is worth remembering: one in 500 such outcomes comes."""


class Named(NamedTuple):
    """The children that the draft named for a node."""

    ids: list[int]  # [WIDTH], best first
    scores: NDArray[np.float32]  # [WIDTH]
    unlisted: list[
        tuple[float, int]
    ]  # chance that the target takes it, and id, of those that are not on the list; likeliest last


class Onward(NamedTuple):
    """A tree that can be sent before the verdict of the last one, and the tokens that one must come to."""

    tree: TokenTree
    assumed: list[int]


class AdaptiveDrafter:
    """A Drafter on one row of a draft model, which has room for so many nodes beside the text."""

    def __init__(
        self, model: Model, pilot: Pilot, *, row: int = 0, room: int = MOST_RANKED
    ) -> None:
        self.pilot, self.drafted = pilot, Drafted()
        self._model, self._row, self._room = model, row, room
        self._tree_room = min(room, MOST_OF_A_TREE) if pilot.bets else room
        self._sequence: ModelSequence | None = None
        self._params = SamplingParams()
        self._growth = Growth(0, 0)
        self._frontier = Frontier(self._growth, [0])
        self._ranked: dict[int, Named] = {}
        self._flights: list[
            list[int]
        ] = []  # trees on their way: nodes, the root first; all but the first under what the one before may come to
        self._deepest = 0  # that the text has room for
        self._prepared: set[int] = set()  # ranked while the verdict was under way

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._params, self._sequence = params, ModelSequence(self._model, self._row, params)
        self._forget(prompt[-1])
        self._sequence.extend(prompt[:-1])

    def draft(self, root: int, budget: Budget) -> TokenTree:
        """What was prepared under this root, grown as long as waiting for that is worth it."""
        if self._flights:  # a tree that was drafted and never committed
            self._forget(root)
        self._growth.limit, self._deepest = budget.nodes, budget.depth
        worth_sending = self.pilot.least_value(budget.nodes)
        while budget.nodes and self._grow(
            max(worth_sending, self._growth.least_of_best([])), self._tree_room
        ):
            pass
        return self._send(self._growth.best(budget.depth))

    def onward(self, most: int, nodes: int) -> Onward | None:
        """The tree under the likeliest outcome of the tree last sent, if it is worth sending before that one's verdict.

        most: tokens that there is room for from the root of the tree last sent on; nodes: below the root of this one.
        """
        growth, sent = self._growth, set(self._flights[-1])
        outside = [
            node for node in self._ranked if growth.parents[node] in sent and node not in sent
        ]
        if not outside or len(self._flights) >= MOST_FLIGHTS:
            return None
        root, first = (
            max(outside, key=lambda node: (growth.values[node], -node)),
            self._flights[-1][0],
        )
        order = growth.best(growth.depths[first] + most - 1, root)[: nodes + 1]
        tokens = sum(growth.values[node] for node in order) / growth.values[root]
        if not self.pilot.sends_onward(growth.values[root], tokens):
            return None
        path = list[int]()
        while root != first:
            path.append(growth.tokens[root])
            root = growth.parents[root]
        return Onward(self._send(order), path[::-1])

    def _send(self, order: list[int]) -> TokenTree:
        """As many of these nodes as is worth it, their root first."""
        values = self._growth.values
        count = self.pilot.size([values[node] / values[order[0]] for node in order[1:]])
        self._flights.append(order[: 1 + count])
        self.pilot.sent(1 + count)
        return self._growth.select(self._flights[-1])

    def ahead(self) -> bool:
        before = self.drafted.seconds
        nodes = self._grow(0.0, self._room) if self.pilot.bets and self._growth.limit else []
        if not nodes:
            return False
        self.drafted.seconds_ahead += self.drafted.seconds - before
        self.drafted.seconds = before
        self._prepared.update(nodes)
        self.drafted.calls += 1
        return True

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from the verdict of the first tree under way, and keep what was grown under the node that it names."""
        sent = self._flights.pop(0)
        path = [sent[node] for node in verdict.path]
        self._learn(path, verdict.next_token)
        expected = sum(self._growth.values[node] for node in sent[1:])
        self.pilot.known.acceptance.count(expected, len(path))
        self.drafted.expected += expected
        self.drafted.rounds += 1
        self.drafted.prepared += len(self._prepared)
        root = self._growth.child(path[-1] if path else 0, verdict.next_token)
        if root is None or root not in self._ranked:
            self._live.commit(self._growth, path)
            return self._forget(verdict.next_token)
        self._keep(path, root)

    @property
    def goes_on(self) -> bool:
        """After a verdict: the next tree under way was sent for what it came to."""
        return bool(self._flights)

    def follow(self, tokens: Sequence[int]) -> None:
        """The target went on alone, from the root: come after it, and learn how the draft would have done."""
        root = self._growth.tokens[0]
        self._forget(root)
        size = self._model.max_nodes
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            self._growth = Growth(root, 0)
            for node, token in enumerate(part[:-1]):
                self._growth.add(node, token, 1.0)
            nodes = range(len(part))
            self._rank(nodes)
            self._learn(nodes[1:], part[-1])
            self._live.commit(self._growth, nodes[1:])
            root = part[-1]
            self._forget(root)

    def close(self) -> None:
        self._sequence = None

    def _keep(self, path: Sequence[int], root: int) -> None:
        """Go on with what was grown under the next root."""
        subtree = self._growth.under(root)
        self._live.commit(self._growth, path, subtree.place)
        self.drafted.hits += 1
        self.drafted.used += len(self._prepared & subtree.place.keys())
        alive = bool(self._flights) and self._flights[0][0] == root
        self._flights = (
            [[subtree.place[node] for node in flight] for flight in self._flights] if alive else []
        )
        self._growth, self._prepared = subtree.growth, set()
        self._ranked = {
            subtree.place[node]: named
            for node, named in self._ranked.items()
            if node in subtree.place
        }
        self._frontier = Frontier(
            self._growth, (node for node in range(len(self._growth)) if node not in self._ranked)
        )
        for node in self._ranked:
            self._list_children(node)

    def _list_children(self, node: int) -> None:
        """Put the children of a ranked node on the list, as far as they are worth remembering."""
        value, unlisted = self._growth.values[node], self._ranked[node].unlisted
        while unlisted and value * unlisted[-1][0] >= LEAST_VALUE:
            edge, token = unlisted.pop()
            self._frontier.add(self._growth.add(node, token, edge))

    def _forget(self, root: int) -> None:
        if self._sequence is not None:
            self._sequence.abandon()
        self._growth, self._ranked, self._flights, self._prepared = Growth(root, 0), {}, [], set()
        self._frontier = Frontier(self._growth, [0])

    def _grow(self, least: float, most: int) -> list[int]:
        """One call of the draft, if children of at least this value make it worth it: the nodes that it ranked.

        most: nodes that may be ranked in all.
        """
        began, growth = self.pilot.clock(), self._growth
        nodes = self._frontier.best(
            min(WIDEST, self._model.max_nodes, most - len(self._ranked)), self._deepest
        )
        width = self.pilot.width([growth.values[node] for node in nodes], least)
        if width:
            self._rank(nodes[:width])
            for node in nodes[:width]:
                self._frontier.remove(node)
                self._list_children(node)
            seconds = self.pilot.clock() - began  # what is decided and listed costs time, too
            self.drafted.seconds += seconds
            self.pilot.called(width, seconds)
        return nodes[:width]

    def _rank(self, nodes: Sequence[int]) -> None:
        """Call the draft for these nodes."""
        growth = self._growth
        ranked = self._live.rank(growth, nodes, WIDTH)
        edges = self.pilot.known.acceptance.edges(
            ranked.scores, [growth.depths[node] for node in nodes], self._params.greedy
        )
        for node, ids, scores, chances in zip(
            nodes, ranked.ids.tolist(), ranked.scores, edges.tolist(), strict=True
        ):
            self._ranked[node] = Named(ids, scores, sorted(zip(chances, ids, strict=True)))

    def _learn(self, path: Sequence[int], next_token: int) -> None:
        """What the target took at every node of the path that the draft has ranked."""
        growth, acceptance = self._growth, self.pilot.known.acceptance
        taken = [*(growth.tokens[node] for node in path), next_token]
        for node, token in zip([0, *path], taken, strict=True):
            named = self._ranked.get(node)
            if named is not None:
                rank = named.ids.index(token) if token in named.ids else None
                acceptance.observe(named.scores, growth.depths[node], self._params.greedy, rank)

    @property
    def _live(self) -> ModelSequence:
        assert self._sequence is not None, "open() comes first"
        return self._sequence
