"""The candidates of a session: unverified nodes after the last committed token.

Proposers append nodes at any time and get no reply. A node's parent is an earlier node of the same
stream, or a committed token. A node whose parent was pruned meanwhile is dropped. If a node's token
was committed meanwhile, the node's number refers to the committed token, so that its children can
still be added. Pure: no clock, no model, no network.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.proposer import MAX_CANDIDATES, Nodes
from inference.tree.growing_tree import EMPTY, NOWHERE, PLACE, GrowingTree, Mark

REMEMBERED_NUMBERS = 4096
"""How many of a stream's latest node numbers may be used as parents. Also how many of the latest
committed candidates a number may refer to.
"""

MIN_CHANCE, SUREST = 2.0**-64, 1 - 2.0**-20
"""Bounds to which an edge's probability is clamped, so that a node ranks after its parent."""

_KEPT_WHEN_FULL = 0.75
_ROUNDING = 1e-9  # tolerance of a cost computed as the difference of two ranks


class Dropped(NamedTuple):
    """Numbers of dropped candidates."""

    late: int = 0  # the parent was pruned, or the position was committed already
    shed: int = 0  # the least valuable candidates of a full tree


Calibrate: TypeAlias = Callable[[int, int, float], float]
"""Calibrate(proposer, depth, claimed) -> calibrated probability. The first level has depth 1."""

Claims: TypeAlias = Mapping[int, Mapping[int, float]]
"""Probabilities claimed for a node's children: proposer -> token -> claimed probability."""

Target: TypeAlias = int
"""What a node's number refers to: mark of a node, ~position of a committed token, or NOWHERE."""


class ProposalStream:
    """A stream of proposals for one session, from join() to leave().

    arrived: nodes that have arrived
    known: nodes that had arrived when the last forward pass began
    wake: called whenever the session progresses; None without a listener
    numbers, targets: the latest numbers and their targets, number n at n % REMEMBERED_NUMBERS
    """

    __slots__ = ("arrived", "known", "numbers", "targets", "wake")

    def __init__(self) -> None:
        self.arrived = self.known = 0
        self.wake: Callable[[], None] | None = None
        self.numbers = [-1] * REMEMBERED_NUMBERS
        self.targets = [NOWHERE] * REMEMBERED_NUMBERS


class CandidateTree(GrowingTree):
    """Candidates below the root, which is the last committed token.

    text: the session's committed tokens, to which the session appends after `commit`.
    limit: maximum candidates.
    accepted: number of committed tokens that were candidates, computed in a forward pass or not.
    deepest: upper bound of all candidates' positions.
    streams: streams of proposals that have not left.
    """

    def __init__(self, text: list[int], limit: int = MAX_CANDIDATES) -> None:
        super().__init__(text[-1], len(text) - 1)
        self.text, self._limit, self.accepted = text, limit, 0
        self.deepest = self.position
        self._claims: dict[Mark, dict[int, dict[int, float]]] = self.table()
        self._raised: dict[Mark, float] = self.table()  # new edge cost, not yet in `ranks`
        self._committed: OrderedDict[Mark, int] = OrderedDict()  # former candidate -> position
        self.streams: list[ProposalStream] = []
        self._in_pass: NDArray[np.intp] | None = None

    def join(self) -> ProposalStream:
        """Begin a stream of proposals."""
        self.streams.append(ProposalStream())
        return self.streams[-1]

    def leave(self, stream: ProposalStream) -> None:
        """End a stream: later nodes are dropped, but its candidates remain. Idempotent."""
        if stream in self.streams:
            self.streams.remove(stream)

    def append(self, stream: ProposalStream, nodes: Nodes, calibrate: Calibrate) -> Dropped:
        """Add nodes below their parents. Return how many were dropped."""
        if stream not in self.streams or not nodes.tokens:
            return Dropped(late=len(nodes.tokens))
        stream.arrived = max(stream.arrived, nodes.end)
        numbers, targets, children = stream.numbers, stream.targets, self.children
        base = ~nodes.base if nodes.base >= 0 else NOWHERE
        proposer, late = nodes.proposer, 0
        described = zip(nodes.parents, nodes.tokens, nodes.chances, strict=True)
        for number, (back, token, claimed) in enumerate(described, nodes.first):
            parent = base
            if back:
                at = (number - back) % REMEMBERED_NUMBERS
                parent = targets[at] if numbers[at] == number - back else NOWHERE
            above = parent if parent in children else self._live(parent)
            if above == NOWHERE:
                target = self._passed(parent, token)
                late += 1
            else:
                depth = self.positions.item(above & PLACE) + 1 - self.position
                target = self._add(above, token, calibrate(proposer, depth, claimed))
                claims = self._claims.setdefault(above, {})
                claims.setdefault(proposer, {})[token] = claimed
            at = number % REMEMBERED_NUMBERS
            numbers[at], targets[at] = number, target
        return Dropped(late, self._shed() if self.live > self._limit else 0)

    @property
    def live(self) -> int:
        """Current number of candidates."""
        return len(self.marks) - len(self._free) - 1

    @property
    def places(self) -> int:
        """Number of places in the arrays that are, or were, in use."""
        return len(self.marks)

    def present_ranks(self) -> NDArray[np.float64]:  # [places]
        """Return the rank of each place: the root's is the lowest; EMPTY at an empty place."""
        if self._raised:
            self._rank_anew()
        return self.ranks[: len(self.marks)]

    def begin_pass(self, places: NDArray[np.intp]) -> None:
        """Protect the nodes of the forward pass that begins now from being dropped by _shed()."""
        self._in_pass = places

    def commit(self, tokens: Sequence[int]) -> list[Claims]:
        """Commit tokens: the last one is the new root, and nodes that are not below it are removed.

        Return the claims for children of the node at which each token was chosen, [tokens].
        """
        path = self.walk(tokens)
        claims = [self._claims.get(node, {}) for node in path[: len(tokens)]]
        for position, node in enumerate(path[1:], self.position + 1):
            self._committed[node] = position
            self._raised.pop(node, None)  # a root has no edge above it
        while len(self._committed) > REMEMBERED_NUMBERS:
            self._committed.popitem(last=False)
        self.advance(tokens)
        self.accepted += len(path) - 1
        self._in_pass = None
        return [*claims, *[{}] * (len(tokens) - len(claims))]

    def _live(self, target: Target) -> Mark:
        """Return the node of a target; NOWHERE if children can no longer be added there."""
        if self._committed.get(target, ~target) == self.position:
            return self.root
        return target if target > NOWHERE and self.lives(target) else NOWHERE

    def _add(self, above: Mark, token: int, chance: float) -> Mark:
        """Add a child, or raise the probability of an existing child. Return its mark."""
        cost = -math.log(min(max(chance, MIN_CHANCE), SUREST))
        child = self.children.get(above, {}).get(token)
        if child is None:
            child = self.add_child(above, token, self.rank(above) + cost)
            self.deepest = max(self.deepest, self.position_of(child))
        elif cost < self._raised.get(child, self.rank(child) - self.rank(above)) - _ROUNDING:
            self._raised[child] = cost
        return child

    def _passed(self, above: Target, token: int) -> Target:
        """Return the target of a node whose parent is a committed token before the root: NOWHERE
        unless this node's token was committed after it.
        """
        position = self._committed.get(above, ~above) + 1
        is_committed = 0 < position <= self.position and self.text[position] == token
        return ~position if is_committed else NOWHERE

    def _rank_anew(self) -> None:
        """Recompute ranks after edges changed: a rank is the sum of the costs on the path."""
        root, used = self.root & PLACE, len(self.marks)
        ranks = self.ranks[:used]
        rank = ranks.item(root)
        above = np.where(np.isinf(ranks), root, self.parents[:used])
        above[root] = root
        costs = ranks - ranks[above]
        costs[[node & PLACE for node in self._raised]] = list(self._raised.values())
        while (above != root).any():  # pointer doubling: each iteration looks twice as far up
            costs += costs[above]
            above = above[above]
        ranks[:] = rank + costs
        self._raised.clear()

    def _shed(self) -> int:
        """Drop the least valuable candidates, but no nodes of a running forward pass. Return the
        number of dropped nodes.
        """
        ranks = self.present_ranks()
        dropped = ranks < EMPTY
        dropped[np.argsort(ranks)[: 1 + int(_KEPT_WHEN_FULL * self._limit)]] = False
        if self._in_pass is not None:
            dropped[self._in_pass] = False
        shed = [self.marks[place] for place in dropped.nonzero()[0].tolist()]
        for node in shed:
            above, token = self.parent(node), self.token(node)
            del self.children[above][token]
            for claims in self._claims.get(above, {}).values():
                claims.pop(token, None)
        return len(self.prune(shed))
