"""The draft's candidates after the committed tokens, ordered by value: the probability that the
target reaches them. Pure: no model, no clock, no network.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from inference.order import Progress
from inference.proposer import Nodes
from inference.tree.growing_tree import PLACE, GrowingTree, Mark

_NEVER = 1e-300  # minimum probability, so that its logarithm is finite
_SPARE = 64  # extra entries that an Order tolerates before it searches for outdated ones
_ROUNDING = 1e-9  # tolerance for ranks


class ProposedChildren(NamedTuple):
    """The children that one source proposes for a node."""

    ids: list[int]
    table: Any  # [k, F] features of each child, an array or lists
    chances: Sequence[float]  # [k]

    def index_of(self, token: int) -> int | None:
        """Return the index of a child; None if it was not proposed."""
        return self.ids.index(token) if token in self.ids else None


class Listing:
    """A node's proposed children and their ranks, most likely first, ended by an infinite rank.

    listed: number of these children that have become nodes
    """

    __slots__ = ("ids", "listed", "ranks")

    def __init__(self, ids: list[int], ranks: list[float]) -> None:
        self.ids, self.ranks, self.listed = ids, ranks, 0


RankedNode: TypeAlias = tuple[float, Mark]


class Order:
    """A priority queue of nodes by rank, which drops outdated entries.

    A node whose rank changes is added again, so its older entries are outdated.

    counts: counts(rank, node) returns whether an entry is up to date
    """

    def __init__(self, counts: Callable[[float, Mark], bool]) -> None:
        self._counts = counts
        self._entries: list[RankedNode] = []
        self._sound = 0  # number of entries after the last search for outdated ones

    def add(self, node: Mark, rank: float) -> None:
        insort(self._entries, (rank, node))
        if len(self._entries) > 2 * self._sound + _SPARE:
            self._entries = [entry for entry in self._entries if self._counts(*entry)]
            self._sound = len(self._entries)

    def first(self, limit: int) -> list[Mark]:
        """Return up to `limit` nodes, the most valuable first."""
        sound, searched = list[RankedNode](), 0
        for entry in self._entries:
            if len(sound) >= limit:
                break
            searched += 1
            if self._counts(*entry):
                sound.append(entry)
        if searched > len(sound):
            self._entries[:searched] = sound
        return [node for _, node in sound]

    def take(self, rank: float) -> list[Mark]:
        """Remove and return nodes of at most this rank, the most valuable first."""
        end = bisect_right(self._entries, (rank, math.inf))
        nodes = [entry[1] for entry in self._entries[:end] if self._counts(*entry)]
        del self._entries[:end]
        return nodes


class DraftTree(GrowingTree):
    """Nodes after the last committed token, and the children that sources propose for them.

    end: maximum length, prompt included
    keyed: nodes whose keys are in the draft's row, which maintains this set
    fresh: nodes added since this list was last emptied, if they may have children

    Tables by node:
    sent: the node's number in the stream
    listings: the node's proposed children
    forced: tokens that a grammar forces after the node; then no other source proposes children
    copied, ranked: children proposed by copied text and by the model
    joint: children proposed by model or copied text, with features of both
    covered: probability that the target accepts a child proposed before the node was ranked
    copies: nodes that the model had not proposed when they were added
    """

    def __init__(self, token: int, position: int, end: int) -> None:
        super().__init__(token, position)
        self.end = end
        self.keyed, self.fresh = set[Mark](), list[Mark]()
        self.sent: dict[Mark, int] = self.table()
        self.listings: dict[Mark, Listing] = self.table()
        self.forced: dict[Mark, Sequence[int]] = self.table()
        self.copied: dict[Mark, ProposedChildren] = self.table()
        self.ranked: dict[Mark, ProposedChildren] = self.table()
        self.joint: dict[Mark, ProposedChildren] = self.table()
        self.covered: dict[Mark, float] = self.table()
        self.copies: dict[Mark, bool] = self.table()
        self.unranked = Order(lambda rank, node: node not in self.keyed and self._is(rank, node))
        self.unsent = Order(lambda rank, node: node not in self.sent and self._is(rank, node))
        self._unlisted = Order(self._is_next)  # by the most likely child that is not a node yet
        self._rankable(self.root, 0.0)

    def new_tokens(self, progress: Progress) -> Sequence[int]:
        """Return the committed tokens after the root. Raises ValueError if tokens are missing."""
        expected, first = self.position + 1, progress.position
        if first > expected:
            raise ValueError(f"progress must be in order: got position {first}, not {expected}")
        return progress.tokens[expected - first :]

    def rank_of(self, value: float) -> float:
        """Return the rank of a node with this value."""
        return self.rank(self.root) - math.log(value)

    def propose(self, node: Mark, ids: Sequence[int], chances: Sequence[float]) -> None:  # [k]
        """Propose the node's children, each with its probability. They become nodes once they are
        valuable enough. Earlier proposals are replaced, except for children that are nodes.
        """
        order = sorted(range(len(ids)), key=chances.__getitem__, reverse=True)
        rank, children = self.rank(node), self.children.get(node, {})
        ranks = [rank - math.log(max(chances[child], _NEVER)) for child in order]
        ranks.append(math.inf)
        listing = self.listings[node] = Listing([ids[child] for child in order], ranks)
        for token, rank in zip(listing.ids, ranks, strict=False) if children else ():
            child = children.get(token)
            if child is not None and self.rank(child) != rank:
                self._shift(child, rank - self.rank(child))
        if ids:
            self._unlisted.add(node, ranks[0])

    def add(self, node: Mark, token: int, rank: float) -> Mark:
        """Add a child of the node, whatever its value."""
        child = self.add_child(node, token, rank)
        self._rankable(child, rank)
        self.unsent.add(child, rank)
        return child

    def list_children(self, floor: float) -> None:
        """Turn all proposed children of at least this value into nodes."""
        bound = self.rank_of(floor)
        for node in self._unlisted.take(bound):
            listing = self.listings[node]
            while (rank := listing.ranks[listing.listed]) <= bound:
                token = listing.ids[listing.listed]
                listing.listed += 1
                if token not in self.children.get(node, ()):
                    child = self.add(node, token, rank)
                    drafted = self.ranked.get(node)
                    if drafted is None or token not in drafted.ids:
                        self.copies[child] = True
            if rank < math.inf:
                self._unlisted.add(node, rank)

    def advance(self, tokens: Sequence[int]) -> tuple[list[Mark], list[Mark]]:
        is_node = len(self.walk(tokens)) > len(tokens)
        passed, stale = super().advance(tokens)
        self.fresh.clear()  # it was the former root
        self.sent.pop(self.root, None)
        if not is_node:
            self._rankable(self.root, self.rank(self.root))
        return passed, stale

    # --- sending

    def take_unsent(self, floor: float, limit: int, first: int) -> list[Mark]:
        """Number the unsent nodes of at least the value `floor`, and their unsent ancestors,
        beginning with `first`. Return them, to be sent now.

        limit: maximum sent nodes that are still in the tree
        """
        batch = list[Mark]()
        if len(self.sent) >= limit:
            return batch
        waiting = self.unsent.take(self.rank_of(floor) + _ROUNDING)
        for index, node in enumerate(waiting):
            if node in self.sent or node == self.root:
                continue  # it was sent as the ancestor of another node, or is committed
            line = self._unsent_line(node)
            if len(self.sent) + len(line) > limit:
                for unsent in waiting[index:]:
                    self.unsent.add(unsent, self.rank(unsent))
                break
            self.number(line, first + len(batch))
            batch += line
        return batch

    def number(self, nodes: Sequence[Mark], first: int) -> None:
        """Number these nodes, which are about to be sent, beginning with `first`."""
        self.sent.update(zip(nodes, count(first), strict=False))

    def message(self, nodes: Sequence[Mark], proposer: int) -> Nodes:
        """Return a message with these nodes, whose numbers must be consecutive."""
        first, places = self.sent[nodes[0]], np.array(nodes) & PLACE
        above, tokens = self.parents[places], self.tokens[places].tolist()
        chances = np.exp(self.ranks[above] - self.ranks[places]).tolist()
        parents = [
            number - self.sent.get(self.marks[place], number)
            for number, place in enumerate(above.tolist(), first)
        ]
        return Nodes(self.position, first, parents, tokens, chances, proposer)

    def recall(self) -> None:
        """Treat all nodes as unsent, because the target has lost them."""
        sent = list(self.sent)
        self.sent.clear()
        for node in sent:
            self.unsent.add(node, self.rank(node))

    def _unsent_line(self, node: Mark) -> list[Mark]:
        """Return the node and its unsent ancestors, ancestors first."""
        line = [node]
        while (above := self.parent(line[-1])) != self.root and above not in self.sent:
            line.append(above)
        return line[::-1]

    # --- orders

    def _is(self, rank: float, node: Mark) -> bool:
        """Whether the node is in the tree and has this rank."""
        place = node & PLACE
        return self.marks[place] == node and self.ranks.item(place) == rank

    def _is_next(self, rank: float, node: Mark) -> bool:
        """Whether this is the rank of the node's most likely child that is not a node yet."""
        listing = self.listings.get(node)
        return listing is not None and listing.ranks[listing.listed] == rank

    def _rankable(self, node: Mark, rank: float) -> None:
        if self.position_of(node) < self.end - 2:  # the last token is the target's own in any case
            self.unranked.add(node, rank)
            self.fresh.append(node)

    def _shift(self, node: Mark, by: float) -> None:
        """Change the rank of a node and of all nodes below it."""
        below = [node]
        for current in below:  # the list grows during the loop
            rank = self.ranks[current & PLACE] = self.rank(current) + by
            if current not in self.keyed and self.position_of(current) < self.end - 2:
                self.unranked.add(current, rank)
            if current not in self.sent:
                self.unsent.add(current, rank)
            listing = self.listings.get(current)
            if listing is not None:
                listing.ranks = [rank + by for rank in listing.ranks]
                if (rank := listing.ranks[listing.listed]) < math.inf:
                    self._unlisted.add(current, rank)
            below.extend(self.children.get(current, {}).values())
