"""The candidates of a session: nodes that nobody has verified yet, below the last committed token.

Proposers append nodes at any moment and get no answer. A node's parent is an earlier node of the
same stream, or a committed token. A node whose parent was pruned meanwhile is dropped. A node that
names a token already committed at its position stands for that position from then on, so its
children are kept. Pure: no clock, no model, no network.

A tree is a few flat arrays, because all sessions together have tens of thousands of candidates. A
forward's best nodes are found for all sessions at once (inference/engine/snapshot.py). Ranks are
sums from the beginning of the text, so a new root changes none of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.proposer import BASE, MOST_CANDIDATES, Nodes

REMEMBERED_NUMBERS = 4096
"""Number of latest numbers of a stream that may be named as parents. Also of latest committed
candidates a number may resolve to.
"""

LEAST_CHANCE, SUREST = 2.0**-64, 1 - 2.0**-20
"""Bounds to which an edge's chance is clamped, so that a node always ranks behind its parent."""

NOBODY = np.inf
"""The rank of an empty place in the arrays."""

_KEPT_WHEN_FULL = 0.75
_ROUNDING = 1e-9  # tolerance of a cost that is the difference of two ranks


class Dropped(NamedTuple):
    """Numbers of candidates that were not kept."""

    late: int = 0  # the parent was pruned, or the position was committed already
    shed: int = 0  # the least valuable candidates of a full tree


Trusted: TypeAlias = Callable[[int, int, float], float]
"""Trusted(proposer, depth, claimed chance) -> calibrated chance. The first level has depth 1."""


Mark: TypeAlias = int
"""Target of a node's number. Above 0: a candidate. Below 0: ~position of a committed token.
NOWHERE: nothing. A candidate's mark is unique; its low bits are its place in the arrays.
"""

NOWHERE: Mark = 0

_PLACE_BITS = 20
PLACE: Mark = (1 << _PLACE_BITS) - 1
"""mark & PLACE: the place in the arrays."""


class _Numbers:
    """Marks of a stream's latest numbers: number n is at index n % REMEMBERED_NUMBERS."""

    __slots__ = ("marks", "numbers")

    def __init__(self) -> None:
        self.numbers = [BASE] * REMEMBERED_NUMBERS
        self.marks = [NOWHERE] * REMEMBERED_NUMBERS


class SiblingGroup:
    """A node that has, or had, children. place, position and rank are the node's own."""

    __slots__ = ("children", "claims", "place", "position", "rank")

    def __init__(self, place: int, position: int, rank: float) -> None:
        self.place, self.position, self.rank = place, position, rank
        self.children: dict[int, Mark] = {}  # token -> child
        self.claims: dict[int, dict[int, float]] = {}  # proposer -> token -> claimed chance


class _NodeStore:
    """The arrays of a tree. Each node has a place (an index), which is reused after it is dropped.

    nodes: [3, size] the rows `tokens`, `above` and `positions`, which are views of it.
    above: place of the node's parent.
    positions: position of the node's token in the text.
    ranks: minus the logarithm of the node's value (the product of the chances on its path), or
    NOBODY at an empty place.
    marks: [size] the mark of the latest node at each place.
    """

    def __init__(self) -> None:
        self.nodes = np.zeros((3, 64), dtype=np.int32)
        self.tokens, self.above, self.positions = self.nodes
        self.ranks = np.full(64, NOBODY)
        self.marks: list[Mark] = []
        self._free: list[Mark] = []  # of nodes that are gone: their places are free
        self._added = 0

    def add(self, token: int, above: int, position: int, rank: float) -> Mark:
        """Store a new node; returns its mark."""
        marks, free = self.marks, self._free
        if not free:
            free.append(len(marks))
            marks.append(NOWHERE)
            if len(marks) > len(self.ranks):
                self._grow()
        place = free.pop() & PLACE
        self.tokens[place] = token
        self.above[place] = above
        self.positions[place] = position
        self.ranks[place] = rank
        self._added += 1
        mark = marks[place] = self._added << _PLACE_BITS | place
        return mark

    def drop(self, gone: Sequence[Mark]) -> None:
        """Remove nodes; their places become free."""
        self.ranks[np.array(gone, dtype=np.int64) & PLACE] = NOBODY
        self._free += gone

    def _grow(self) -> None:
        self.nodes = np.concatenate([self.nodes, np.zeros_like(self.nodes)], axis=1)
        self.tokens, self.above, self.positions = self.nodes
        self.ranks = np.concatenate([self.ranks, np.full(len(self.ranks), NOBODY)])


class CandidateTree:
    """Candidates below the last of `tokens`, which is the root.

    tokens: the session's committed tokens, the root among them; they are appended elsewhere.
    most: candidates that are kept at most.
    live: number of candidates now.
    taken: committed tokens that were candidates, computed in their forward or not.
    position: position of the root in the text.
    deepest: an upper bound of all candidates' positions.
    """

    def __init__(self, tokens: list[int], most: int = MOST_CANDIDATES) -> None:
        self.tokens, self._most = tokens, most
        self.store, self.live, self.taken = _NodeStore(), 0, 0
        self.position = self.deepest = len(tokens) - 1
        self.root = self.store.add(tokens[-1], 0, self.position, 0.0)
        self._groups: dict[Mark, SiblingGroup] = {}  # by the parent
        self._raised: dict[Mark, float] = {}  # node -> new edge cost, not yet in `ranks`
        self._committed: OrderedDict[Mark, int] = OrderedDict()  # former candidate -> position
        self._streams: dict[int, _Numbers] = {}
        self._in_hand: NDArray[np.intp] | None = None

    def join(self, stream: int) -> None:
        """Begin to remember the numbers of this stream."""
        self._streams[stream] = _Numbers()

    def leave(self, stream: int) -> None:
        """Forget the stream's numbers; its candidates stay."""
        self._streams.pop(stream, None)

    def append(self, stream: int, nodes: Nodes, trusted: Trusted) -> Dropped:
        """Add the nodes below their parents; returns how many were dropped."""
        ring = self._streams.get(stream)
        if ring is None:
            return Dropped(late=len(nodes.proposals))
        numbers, marks, groups = ring.numbers, ring.marks, self._groups
        base = ~nodes.base if nodes.base >= 0 else NOWHERE
        proposer, late = nodes.proposer, 0
        for number, parent, token, claimed in nodes.proposals:
            above, at = base, parent % REMEMBERED_NUMBERS
            if parent != BASE:
                above = marks[at] if numbers[at] == parent else NOWHERE
            group = groups.get(above) or self._group(above)
            if group is None:
                mark = self._passed(above, token)
                late += 1
            else:
                chance = trusted(proposer, group.position + 1 - self.position, claimed)
                mark = self._hang(group, token, chance)
                claims = group.claims.get(proposer)
                if claims is None:
                    claims = group.claims[proposer] = {}
                claims[token] = claimed
            at = number % REMEMBERED_NUMBERS
            numbers[at], marks[at] = number, mark
        return Dropped(late, self._shed() if self.live > self._most else 0)

    @property
    def places(self) -> int:
        """Places in the arrays that are, or were, in use."""
        return len(self.store.marks)

    def ranks(self) -> NDArray[np.float64]:  # [size]
        """Rank of each place: the root's is the lowest, NOBODY marks an empty place."""
        if self._raised:
            self._rank_anew()
        return self.store.ranks[: len(self.store.marks)]

    def group(self, place: int) -> SiblingGroup | None:
        """The group of the node at a place, if it has or had children."""
        return self._groups.get(self.store.marks[place])

    def take(self, places: NDArray[np.intp]) -> None:
        """Protect the nodes of the forward that starts now: none is shed before `advance`."""
        self._in_hand = places

    def advance(self, tokens: Sequence[int]) -> list[SiblingGroup | None]:
        """Commit tokens: the last one is the new root, and nodes that are not below it go.

        Returns the groups that the tokens were chosen in, [tokens]; None: nobody had named any.
        """
        store, groups = self.store, list[SiblingGroup | None]()
        roots, beside = list[Mark](), list[Mark]()
        for token in tokens:
            before, after, group = self.root, None, self._groups.pop(self.root, None)
            roots.append(before)
            groups.append(group)
            self.position += 1
            if group is not None:
                after = group.children.pop(token, None)
                beside += group.children.values()
            if after is None:
                rank = store.ranks.item(before & PLACE)
                after = store.add(token, 0, self.position, rank)
            else:
                self.live -= 1
                self.taken += 1
                self._committed[after] = self.position
                self._raised.pop(after, None)  # a root has no edge above it
            self.root = after
        store.drop(roots + self._pruned(beside))
        while len(self._committed) > REMEMBERED_NUMBERS:
            self._committed.popitem(last=False)
        self._in_hand = None
        return groups

    def _group(self, above: Mark) -> SiblingGroup | None:
        """The group whose parent a mark names; None when that parent takes no more children."""
        if self._committed.get(above, ~above) == self.position:
            above = self.root
        place = above & PLACE
        if above <= NOWHERE or self.store.marks[place] != above:
            return None
        group = self._groups.get(above)
        if group is None:
            position, rank = self.store.positions.item(place), self.store.ranks.item(place)
            if rank == NOBODY:
                return None
            group = self._groups[above] = SiblingGroup(place, position, rank)
        return group

    def _hang(self, group: SiblingGroup, token: int, chance: float) -> Mark:
        """Add a child, or raise the chance of an existing one; returns its mark."""
        cost = -math.log(min(max(chance, LEAST_CHANCE), SUREST))
        mark = group.children.get(token)
        if mark is None:
            position = group.position + 1
            mark = self.store.add(token, group.place, position, group.rank + cost)
            group.children[token] = mark
            self.live += 1
            if position > self.deepest:
                self.deepest = position
        elif cost < self._cost(group, mark) - _ROUNDING:
            self._raised[mark] = cost
        return mark

    def _cost(self, group: SiblingGroup, mark: Mark) -> float:
        """Minus the logarithm of the chance of the edge to a child."""
        raised = self._raised.get(mark)
        return self.store.ranks.item(mark & PLACE) - group.rank if raised is None else raised

    def _passed(self, above: Mark, token: int) -> Mark:
        """Mark of a token whose parent is committed and not the root.

        It is NOWHERE unless the target has committed this token there.
        """
        position = self._committed.get(above, ~above) + 1
        known = 0 < position <= self.position and self.tokens[position] == token
        return ~position if known else NOWHERE

    def _pruned(self, gone: list[Mark]) -> list[Mark]:
        """Forget candidates that have left their groups, and all below; returns all of them."""
        groups = self._groups
        for mark in gone:  # the list grows during the loop
            if mark in groups:
                gone += groups.pop(mark).children.values()
        for mark in gone if self._raised else ():
            self._raised.pop(mark, None)
        self.live -= len(gone)
        return gone

    def _rank_anew(self) -> None:
        """Recompute ranks after chances were raised: a rank is the sum of the costs on the path."""
        store, root = self.store, self.root & PLACE
        ranks, above = store.ranks[: len(store.marks)], store.above[: len(store.marks)]
        rank = ranks.item(root)
        above = np.where(np.isinf(ranks), root, above)
        above[root] = root
        costs = ranks - ranks[above]
        costs[[mark & PLACE for mark in self._raised]] = list(self._raised.values())
        while (above != root).any():  # pointer doubling: each step looks twice as far up
            costs += costs[above]
            above = above[above]
        ranks[:] = rank + costs
        self._raised.clear()
        for group in self._groups.values():
            group.rank = ranks.item(group.place)

    def _shed(self) -> int:
        """Drop the least valuable candidates; returns how many. Nodes of a running forward stay."""
        store, ranks = self.store, self.ranks()
        dropped = ranks < NOBODY
        dropped[np.argsort(ranks)[: 1 + int(_KEPT_WHEN_FULL * self._most)]] = False
        if self._in_hand is not None:
            dropped[self._in_hand] = False
        gone = [store.marks[place] for place in dropped.nonzero()[0].tolist()]
        for mark in gone:
            place = mark & PLACE
            group = self._groups[store.marks[store.above.item(place)]]
            token = store.tokens.item(place)
            del group.children[token]
            for claims in group.claims.values():
                claims.pop(token, None)
        for mark in gone:
            self._groups.pop(mark, None)
        store.drop(gone)
        self.live -= len(gone)
        return len(gone)
