"""The candidates of a session: nodes that nobody has verified yet, below the last committed token.

Proposers append nodes at any moment and hear nothing back. A node hangs below an earlier node of
the same stream, or below a committed token. A node whose place was pruned meanwhile is dropped. A
node that names the token which the target has committed there becomes that position, so that its
children live on. Pure: no clock, no model, no network.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from inference.accept import Verdict
from inference.tree import IntArray, TokenTree

BASE = -1
"""As a parent: the committed token at `Nodes.base`."""

MOST_CANDIDATES = 1024
"""Nodes that a session keeps; beyond them the least valuable are dropped."""

REMEMBERED_NUMBERS = 4096
"""Latest numbers of a stream that may be named as parents."""

_KEPT_WHEN_FULL = 0.75


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


Trusted: TypeAlias = Callable[[int, int, float], float]
"""Trusted(proposer, depth, claimed chance) -> calibrated chance. The first level has depth 1."""


class Candidate:
    """A node of the tree.

    position: of its token in the text.  chance: of its edge, the greatest that any proposer is
    trusted with.  claims: the chance that each proposer claimed.
    """

    __slots__ = (
        "_ordered",
        "chance",
        "children",
        "claims",
        "committed",
        "dead",
        "position",
        "token",
    )

    def __init__(self, token: int, position: int, chance: float = 1.0) -> None:
        self.token, self.position, self.chance = token, position, chance
        self.children: dict[int, Candidate] = {}
        self.claims: dict[int, float] = {}
        self.committed = self.dead = False
        self._ordered: list[Candidate] | None = None

    @property
    def ordered(self) -> list[Candidate]:
        """Children, the likeliest first."""
        if self._ordered is None:
            self._ordered = sorted(self.children.values(), key=_by_chance)
        return self._ordered

    def changed(self) -> None:
        """A child came or went, or is worth something else."""
        self._ordered = None


def _by_chance(node: Candidate) -> float:
    return -node.chance


Place: TypeAlias = "Candidate | int | None"
"""Where a number leads: a candidate, a committed position, or nowhere."""


class CandidateTree:
    """Candidates below the last of `tokens`.

    tokens: the session's committed ones, which only `advance` appends to.
    most: candidates that are kept.
    live: candidates that are there now.
    """

    def __init__(self, tokens: list[int], most: int = MOST_CANDIDATES) -> None:
        self._tokens, self._most = tokens, most
        self.root = Candidate(tokens[-1], len(tokens) - 1)
        self.live = 0
        self._places: dict[int, list[tuple[int, Place]]] = {}  # stream -> ring of (number, place)
        self._in_hand: set[Candidate] = set()

    def join(self, stream: int) -> None:
        """Numbers of this stream are remembered from now on."""
        self._places[stream] = [(BASE, None)] * REMEMBERED_NUMBERS

    def leave(self, stream: int) -> None:
        """Forget the stream's numbers; its candidates stay."""
        self._places.pop(stream, None)

    def append(self, stream: int, nodes: Nodes, trusted: Trusted) -> int:
        """Hang the nodes where they belong; returns how many became, or met, a candidate."""
        places = self._places.get(stream)
        if places is None:
            return 0
        used = 0
        for number, parent, token, claimed in nodes.proposals:
            above = nodes.base if parent == BASE else _find(places, parent)
            place = self._hang(above, token, nodes.proposer, claimed, trusted)
            places[number % REMEMBERED_NUMBERS] = (number, place)
            used += isinstance(place, Candidate)
        if self.live > self._most:
            self._shed()
        return used

    def best(self, depth: int, *, branches: bool = True) -> BestFirst:
        """The root and the candidates up to so many levels below it, most valuable first; without
        branches the likeliest line.
        """
        return BestFirst(self.root, depth, branches=branches)

    def take(self, nodes: Sequence[Candidate]) -> None:
        """These are in a forward's hand: they are not dropped before the next advance."""
        self._in_hand = set(nodes)

    def advance(self, tokens: Sequence[int]) -> None:
        """The target has committed these; what is not below the last of them is pruned."""
        for token in tokens:
            before, after = self.root, self.root.children.pop(token, None)
            self._tokens.append(token)
            before.committed = True
            self._prune(before)
            if after is None:
                after = Candidate(token, before.position + 1)
            else:
                self.live -= 1
            self.root = after
        self._in_hand.clear()

    def _hang(
        self, above: Place, token: int, proposer: int, claimed: float, trusted: Trusted
    ) -> Place:
        if isinstance(above, Candidate):
            if above.dead:
                return None
            if above.committed:
                above = above.position
        if above is None:
            return None
        root = self.root
        if isinstance(above, int):
            if not 0 <= above <= root.position:
                return None
            if above < root.position:
                return above + 1 if self._tokens[above + 1] == token else None
            above = root
        depth = above.position + 1 - root.position
        chance, child = trusted(proposer, depth, claimed), above.children.get(token)
        if child is None:
            child = above.children[token] = Candidate(token, above.position + 1, chance)
            self.live += 1
            above.changed()
        elif chance > child.chance:
            child.chance = chance
            above.changed()
        child.claims[proposer] = claimed
        return child

    def _prune(self, node: Candidate) -> None:
        """Everything below a node is dead."""
        below = list(node.children.values())
        node.children = {}
        node.changed()
        while below:
            dead = below.pop()
            dead.dead = True
            self.live -= 1
            if dead.children:
                below.extend(dead.children.values())
                dead.children = {}

    def _shed(self) -> None:
        """Drop the least valuable candidates, but none that is in a forward's hand."""
        kept = set(BestFirst(self.root).upto(1 + int(_KEPT_WHEN_FULL * self._most)))
        kept |= self._in_hand
        parents = [self.root]
        while parents:
            node = parents.pop()
            for child in list(node.children.values()):
                if child in kept:
                    parents.append(child)
                else:
                    self._prune(child)
                    child.dead = True
                    self.live -= 1
                    del node.children[child.token]
                    node.changed()


class BestFirst:
    """A walk over candidates in order of value, which goes on where it stopped.

    The value of a node is the product of the chances on its path: the probability that the target
    comes to it. A parent is never worth less than its child, so every beginning of the order is a
    tree.
    """

    def __init__(self, root: Candidate, depth: int | None = None, *, branches: bool = True) -> None:
        self.nodes: list[Candidate] = []
        self.values: list[float] = []
        self.parents: list[int] = []  # index of each node's parent, -1 for the root
        self._deepest = None if depth is None else root.position + depth
        self._branches = branches
        self._walk = self._steps(root)

    def upto(self, most: int) -> list[Candidate]:
        """The first `most` nodes, the root included; fewer when there are no more."""
        while len(self.nodes) < most and next(self._walk, False):
            pass
        return self.nodes[:most]

    def _steps(self, root: Candidate) -> Iterator[bool]:
        order = count()
        first = [root]
        heap = [(-1.0, next(order), first, 0, 1.0, -1)]  # last three: place, parent's value, parent
        while heap:
            value, _, siblings, index, above, parent = heapq.heappop(heap)
            node, own = siblings[index], len(self.nodes)
            self.nodes.append(node)
            self.values.append(-value)
            self.parents.append(parent)
            if self._branches and index + 1 < len(siblings):
                worth = above * siblings[index + 1].chance
                heapq.heappush(heap, (-worth, next(order), siblings, index + 1, above, parent))
            if node.children and (self._deepest is None or node.position < self._deepest):
                children = node.ordered
                worth = -value * children[0].chance
                heapq.heappush(heap, (-worth, next(order), children, 0, -value, own))
            yield True


class Snapshot:
    """The nodes of one forward: what was there when it began. The walk over it is the verdict."""

    def __init__(self, best: BestFirst, most: int) -> None:
        self.nodes = best.upto(most)
        self.values = best.values[: len(self.nodes)]
        self._parents = best.parents[: len(self.nodes)]
        tokens = [node.token for node in self.nodes]
        self.tree = TokenTree.trusted(tokens, self._parents)

    def __len__(self) -> int:
        return len(self.nodes)

    def named(self, path: Sequence[int]) -> list[int]:
        """Who named each of these nodes: the proposer that claimed most."""
        claims = [self.nodes[node].claims for node in path]
        return [max(claim, key=claim.__getitem__) for claim in claims]

    def claims(self, chosen: IntArray, verdict: Verdict) -> Iterator[tuple[int, int, float, bool]]:
        """What proposers claimed of edges that the target came to, and whether it took them.

        chosen: [n] the target's token at each node.  Yields (proposer, depth, claimed, taken).
        """
        walked = {node: int(chosen[node]) for node in (0, *verdict.path)}
        root = self.nodes[0].position
        for node, parent in zip(self.nodes[1:], self._parents[1:], strict=True):
            if parent in walked:
                taken = walked[parent] == node.token
                for proposer, claimed in node.claims.items():
                    yield proposer, node.position - root, claimed, taken


def _find(places: Sequence[tuple[int, Place]], number: int) -> Place:
    known, place = places[number % REMEMBERED_NUMBERS]
    return place if known == number else None
