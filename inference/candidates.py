"""The candidates of a session: nodes that nobody has verified yet, below the last committed token.

Proposers append nodes at any moment and hear nothing back. A node hangs below an earlier node of
the same stream, or below a committed token. A node whose place was pruned meanwhile is dropped. A
node that names the token which the target has committed there becomes that position, so that its
children live on. Pure: no clock, no model, no network.

A tree is a few flat arrays, because sessions have tens of thousands of candidates together: what
forwards ask of all nodes is answered for all sessions at once (inference/engine/snapshot.py).
Ranks count from the beginning of the text, so that a new root changes none of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

BASE = -1
"""As a parent: the committed token at `Nodes.base`."""

MOST_CANDIDATES = 1024
"""Nodes that a session keeps; beyond them the least valuable are dropped."""

REMEMBERED_NUMBERS = 4096
"""Latest numbers of a stream that may be named as parents, and latest committed candidates that
numbers may lead to.
"""

LEAST_CHANCE, SUREST = 2.0**-64, 1 - 2.0**-20
"""An edge's chance counts as something between these: a node ranks behind its parent."""

NOBODY = np.inf
"""The rank of a place in the arrays where no node is."""

_KEPT_WHEN_FULL = 0.75
_ROUNDING = 1e-9  # of a cost that is the difference of two ranks


class Proposal(NamedTuple):
    """One node, as its proposer names it. Numbers of a stream grow by one and are never reused."""

    number: int
    parent: int  # number of an earlier node of the stream, or BASE
    token: int
    chance: float  # claimed: that the target takes this edge when it has come to the parent


class Nodes(NamedTuple):
    """One message of a proposer: a hint. Losing it costs speed and never changes the text."""

    base: int  # position of the committed token that BASE stands for
    proposals: Sequence[Proposal]
    proposer: int = 0  # kind of the proposer


class Dropped(NamedTuple):
    """Candidates that were of no use.

    late: hung nowhere, or where the target had been already.
    shed: the least valuable of a full tree.
    """

    late: int = 0
    shed: int = 0


Trusted: TypeAlias = Callable[[int, int, float], float]
"""Trusted(proposer, depth, claimed chance) -> calibrated chance. The first level has depth 1."""


Mark: TypeAlias = int
"""Where a number leads: a candidate, above 0; ~position of a committed token, below 0; or NOWHERE.
A candidate's mark ends with its place in the arrays, and is never another's.
"""

NOWHERE: Mark = 0

_PLACE_BITS = 20
PLACE: Mark = (1 << _PLACE_BITS) - 1
"""mark & PLACE: the place in the arrays."""


class _Numbers:
    """Where the latest numbers of a stream lead. Number n stands at n modulo their count."""

    __slots__ = ("marks", "numbers")

    def __init__(self) -> None:
        self.numbers = [BASE] * REMEMBERED_NUMBERS
        self.marks = [NOWHERE] * REMEMBERED_NUMBERS


class Family:
    """A node that has, or had, children: by token, and what each proposer claimed of which.

    place, position, rank: of the node itself.
    """

    __slots__ = ("children", "claims", "place", "position", "rank")

    def __init__(self, place: int, position: int, rank: float) -> None:
        self.place, self.position, self.rank = place, position, rank
        self.children: dict[int, Mark] = {}
        self.claims: dict[int, dict[int, float]] = {}  # by proposer


class _Columns:
    """The arrays of a tree. A node has a place in them, which another takes when it is gone.

    above: place of the parent.  positions: of the token in the text.
    ranks: minus the logarithm of a node's value, which is the product of the chances on its path.
    marks: [size] of the nodes; NOWHERE where none is.
    """

    def __init__(self) -> None:
        self.tokens, self.above, self.positions = (np.zeros(64, dtype=np.int32) for _ in range(3))
        self.ranks = np.full(64, NOBODY)
        self.marks: list[Mark] = []
        self._free: list[int] = []
        self._added = 0

    def add(self, token: int, above: int, position: int, rank: float) -> Mark:
        """A new node."""
        marks, free = self.marks, self._free
        if not free:
            free.append(len(marks))
            marks.append(NOWHERE)
            if len(marks) > len(self.ranks):
                self._grow()
        place = free.pop()
        self.tokens[place] = token
        self.above[place] = above
        self.positions[place] = position
        self.ranks[place] = rank
        self._added += 1
        mark = marks[place] = self._added << _PLACE_BITS | place
        return mark

    def drop(self, gone: Sequence[Mark]) -> None:
        """These nodes are no more."""
        places = [mark & PLACE for mark in gone]
        for place in places:
            self.marks[place] = NOWHERE
        self.ranks[places] = NOBODY
        self._free += places

    def _grow(self) -> None:
        more = len(self.ranks)
        self.tokens, self.above, self.positions = (
            np.concatenate([column, np.zeros(more, dtype=np.int32)])
            for column in (self.tokens, self.above, self.positions)
        )
        self.ranks = np.concatenate([self.ranks, np.full(more, NOBODY)])


class CandidateTree:
    """Candidates below the last of `tokens`, which is the root.

    tokens: the session's committed ones, which only `advance` appends to.
    most: candidates that are kept.
    live: candidates that are there now.
    position: of the root.  deepest: no candidate has a greater position.
    """

    def __init__(self, tokens: list[int], most: int = MOST_CANDIDATES) -> None:
        self._tokens, self._most = tokens, most
        self.columns, self.live = _Columns(), 0
        self.position = self.deepest = len(tokens) - 1
        self.root = self.columns.add(tokens[-1], 0, self.position, 0.0)
        self._families: dict[Mark, Family] = {}  # by the parent
        self._raised: dict[Mark, float] = {}  # costs of nodes that ranks do not tell yet
        self._committed: OrderedDict[Mark, int] = OrderedDict()  # -> position
        self._streams: dict[int, _Numbers] = {}
        self._in_hand: NDArray[np.intp] | None = None

    def join(self, stream: int) -> None:
        """Numbers of this stream are remembered from now on."""
        self._streams[stream] = _Numbers()

    def leave(self, stream: int) -> None:
        """Forget the stream's numbers; its candidates stay."""
        self._streams.pop(stream, None)

    def append(self, stream: int, nodes: Nodes, trusted: Trusted) -> Dropped:
        """Hang the nodes where they belong; returns what was of no use."""
        ring = self._streams.get(stream)
        if ring is None:
            return Dropped(late=len(nodes.proposals))
        numbers, marks, families = ring.numbers, ring.marks, self._families
        base = ~nodes.base if nodes.base >= 0 else NOWHERE
        proposer, late = nodes.proposer, 0
        for number, parent, token, claimed in nodes.proposals:
            above, at = base, parent % REMEMBERED_NUMBERS
            if parent != BASE:
                above = marks[at] if numbers[at] == parent else NOWHERE
            family = families.get(above) or self._family(above)
            if family is None:
                mark = self._passed(above, token)
                late += 1
            else:
                chance = trusted(proposer, family.position + 1 - self.position, claimed)
                mark = self._hang(family, token, chance)
                claims = family.claims.get(proposer)
                if claims is None:
                    claims = family.claims[proposer] = {}
                claims[token] = claimed
            at = number % REMEMBERED_NUMBERS
            numbers[at], marks[at] = number, mark
        return Dropped(late, self._shed() if self.live > self._most else 0)

    def ranks(self) -> NDArray[np.float64]:  # [size]
        """Of all places, the root's the lowest; NOBODY where no node is."""
        if self._raised:
            self._rank_anew()
        return self.columns.ranks[: len(self.columns.marks)]

    def family(self, place: int) -> Family | None:
        """Of the node at a place, if it has children."""
        return self._families.get(self.columns.marks[place])

    def take(self, places: NDArray[np.intp]) -> None:
        """These are in a forward's hand: they are not dropped before the next advance."""
        self._in_hand = places

    def advance(self, tokens: Sequence[int]) -> None:
        """The target has committed these; what is not below the last of them is pruned."""
        columns, gone = self.columns, list[Mark]()
        for token in tokens:
            before, family = self.root, self._families.pop(self.root, None)
            gone.append(before)
            self._tokens.append(token)
            self.position += 1
            after = family.children.pop(token, None) if family is not None else None
            if after is None:
                rank = columns.ranks.item(before & PLACE)
                after = columns.add(token, 0, self.position, rank)
            else:
                self.live -= 1
                self._committed[after] = self.position
                self._raised.pop(after, None)  # a root has no edge above it
            if family is not None:
                self._prune(family, gone)
            self.root = after
        columns.drop(gone)
        while len(self._committed) > REMEMBERED_NUMBERS:
            self._committed.popitem(last=False)
        self._in_hand = None

    def _family(self, above: Mark) -> Family | None:
        """Whose children hang at a mark; None where nothing can hang any more."""
        if self._committed.get(above, ~above) == self.position:
            above = self.root
        place = above & PLACE
        if above <= NOWHERE or self.columns.marks[place] != above:
            return None
        family = self._families.get(above)
        if family is None:
            position, rank = self.columns.positions.item(place), self.columns.ranks.item(place)
            family = self._families[above] = Family(place, position, rank)
        return family

    def _hang(self, family: Family, token: int, chance: float) -> Mark:
        """A child, whether it is there already or not; returns its mark."""
        cost = -math.log(min(max(chance, LEAST_CHANCE), SUREST))
        mark = family.children.get(token)
        if mark is None:
            position = family.position + 1
            mark = self.columns.add(token, family.place, position, family.rank + cost)
            family.children[token] = mark
            self.live += 1
            if position > self.deepest:
                self.deepest = position
        elif cost < self._cost(family, mark) - _ROUNDING:
            self._raised[mark] = cost
        return mark

    def _cost(self, family: Family, mark: Mark) -> float:
        """Of the edge to a child."""
        raised = self._raised.get(mark)
        return self.columns.ranks.item(mark & PLACE) - family.rank if raised is None else raised

    def _passed(self, above: Mark, token: int) -> Mark:
        """The mark of a token below a committed one that is not the last."""
        position = self._committed.get(above, ~above) + 1
        known = 0 < position <= self.position and self._tokens[position] == token
        return ~position if known else NOWHERE

    def _prune(self, family: Family, gone: list[Mark]) -> None:
        """Everything below a node is dead, and is added to what is gone."""
        families, below = self._families, list(family.children.values())
        for mark in below:  # which grows
            if mark in families:
                below.extend(families.pop(mark).children.values())
        for mark in below if self._raised else ():
            self._raised.pop(mark, None)
        self.live -= len(below)
        gone += below

    def _rank_anew(self) -> None:
        """Chances were raised: a rank is the sum of the costs on the path from the root."""
        columns, root = self.columns, self.root & PLACE
        ranks, above = columns.ranks[: len(columns.marks)], columns.above[: len(columns.marks)]
        rank = ranks.item(root)
        above = np.where(np.isinf(ranks), root, above)
        above[root] = root
        costs = ranks - ranks[above]
        costs[[mark & PLACE for mark in self._raised]] = list(self._raised.values())
        while (above != root).any():  # each step looks twice as far up
            costs += costs[above]
            above = above[above]
        ranks[:] = rank + costs
        self._raised.clear()
        for family in self._families.values():
            family.rank = ranks.item(family.place)

    def _shed(self) -> int:
        """Drop the least valuable candidates, but none that is in a forward's hand; returns how
        many.
        """
        columns, ranks = self.columns, self.ranks()
        dropped = ranks < NOBODY
        dropped[np.argsort(ranks)[: 1 + int(_KEPT_WHEN_FULL * self._most)]] = False
        if self._in_hand is not None:
            dropped[self._in_hand] = False
        gone = [columns.marks[place] for place in dropped.nonzero()[0].tolist()]
        for mark in gone:
            place = mark & PLACE
            family = self._families[columns.marks[columns.above.item(place)]]
            token = columns.tokens.item(place)
            del family.children[token]
            for claims in family.claims.values():
                claims.pop(token, None)
        for mark in gone:
            self._families.pop(mark, None)
        columns.drop(gone)
        self.live -= len(gone)
        return len(gone)
