"""How SpecEdge and AutoDraft draft trees, restated as rules on our engine from their descriptions.

Rivals get the target's own noise for ranking, which their own programs do not have. At temperature
0 they lose nothing by it; above it they are better here than at home. Times are told them as they
would have measured them. All have one draft, on the user's machine, and make one call at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Protocol

from benchmarks.regret.betting import LATEST, Rule, under
from benchmarks.regret.growth import Growth
from inference.times import DraftTimes, LatencyModel


class OneBet(Rule):
    """While the verdict is under way, the draft goes on below one leaf and one token after it."""

    def __init__(self) -> None:
        self._bet: int | None = None  # the node that is bet on, once it is chosen

    def leaves(self, growth: Growth, sent: Sequence[int]) -> list[int]:
        """Sent nodes below which the bet may lie."""
        raise NotImplementedError

    def goes_on(self, chance: float, now: float) -> bool:
        """Whether another call of the draft below a bet of this chance is worth it."""
        return True

    def sent(self, nodes: int, now: float) -> None:
        self._bet = None

    def ahead(
        self,
        growth: Growth,
        ranked: Collection[int],
        sent: Sequence[int],
        deepest: int,
        now: float,
    ) -> list[int]:
        """Leaves whose children are not known yet, then the bet, then what is below it."""
        if self._bet is None:
            leaves = self.leaves(growth, sent)
            leaves = [node for node in leaves if growth.depths[node] < deepest - 1]
            unknown = [node for node in leaves if node not in ranked]
            if unknown:
                best = max(growth.values[node] for node in unknown)
                return unknown if self.goes_on(best, now) else []
            self._bet = _best_child(growth, sent, leaves)
        if self._bet is None or not self.goes_on(growth.values[self._bet], now):
            return []
        if self._bet not in ranked:
            return [self._bet]
        subtree = under(growth, self._bet)
        old = {new: node for node, new in subtree.place.items()}
        below = {subtree.place[node] for node in ranked if node in subtree.place}
        left = deepest - growth.depths[self._bet]
        return [old[node] for node in self.expand(subtree.growth, below, left)]


def _best_child(growth: Growth, sent: Sequence[int], leaves: Sequence[int]) -> int | None:
    held, below = set(sent), set(leaves)
    children = [
        node for node in range(1, len(growth)) if growth.parents[node] in below and node not in held
    ]
    return max(children, key=growth.values.__getitem__, default=None)


class BudgetTree(OneBet):
    """One bet beside a tree of fixed size, as SpecEdge drafts (arXiv 2505.17052).

    The tree holds the `nodes` most probable nodes and grows as long as a new one is among them;
    each level costs a tenth of the probability. The bet is the most probable pair of a leaf and a
    token after it, below which a tree of the same kind grows until the verdict is here.
    """

    decay = 0.9

    def __init__(self, nodes: int = 32, depth: int = 16) -> None:
        super().__init__()
        self._nodes, self._depth = nodes, depth

    def expand(self, growth: Growth, ranked: Collection[int], deepest: int) -> list[int]:
        kept = self.select(growth, min(deepest, self._depth))
        return [
            node
            for node in kept
            if node not in ranked and growth.depths[node] < min(deepest, self._depth)
        ]

    def select(self, growth: Growth, deepest: int) -> list[int]:
        limit = growth.limit
        growth.limit = min(limit, self._nodes)
        best = growth.best(deepest)
        growth.limit = limit
        return best

    def leaves(self, growth: Growth, sent: Sequence[int]) -> list[int]:
        parents = {growth.parents[node] for node in sent}
        return [node for node in sent if node not in parents]


class Transfer(Protocol):
    """What somebody believes that a link takes for a round's nodes; it is told what it took."""

    def observe(self, seconds: float, nodes: int) -> None: ...

    def seconds(self, nodes: int) -> float: ...


class TransferByNode:
    """Every node takes its share, as AutoDraft measures it: so a round trip looks like many
    small costs, and few nodes seem cheap.
    """

    def __init__(self) -> None:
        self._each = 0.0

    def observe(self, seconds: float, nodes: int) -> None:
        self._each += (LATEST if self._each else 1.0) * (seconds / max(nodes, 1) - self._each)

    def seconds(self, nodes: int) -> float:
        return nodes * self._each


class TransferByRound:
    """A round takes the same whatever is in it: what AutoDraft's rule could be with a round trip
    in its model.
    """

    def __init__(self) -> None:
        self._round = 0.0

    def observe(self, seconds: float, nodes: int) -> None:
        self._round += (LATEST if self._round else 1.0) * (seconds - self._round)

    def seconds(self, nodes: int) -> float:
        return self._round


class ObjectiveTree(OneBet):
    """A tree by AutoDraft's objective at its fastest setting, and its bet on the deepest leaf.

    Expected tokens a second are (0.95 * scale * values added up + 1) / (drafting + transfer +
    verifying), the last by interpolation. `scale` follows what was accepted. Widths and sizes are
    multiples of ten up to 150. Levels are added as long as the objective rises.
    """

    def __init__(self, draft: DraftTimes, target: LatencyModel, transfer: Transfer) -> None:
        super().__init__()
        self._draft, self._target, self._transfer = draft, target, transfer
        self._scale, self._away = 1.0, 0.0
        self._nodes, self._sent_at = 0, 0.0

    def expand(self, growth: Growth, ranked: Collection[int], deepest: int) -> list[int]:
        level = max(growth.depths)
        if level >= deepest or (
            level and self._rate(growth, ranked, level) <= self._rate(growth, ranked, level - 1)
        ):
            return []
        frontier = sorted(
            (node for node in range(len(growth)) if growth.depths[node] == level),
            key=lambda node: -growth.values[node],
        )
        return frontier[
            : self._width(
                [growth.values[node] for node in frontier], self._rate(growth, ranked, level)
            )
        ]

    def select(self, growth: Growth, deepest: int) -> list[int]:
        best = growth.best(deepest)
        return best[: 1 + self._size([growth.values[node] for node in best[1:]], 0.0)[0]]

    def leaves(self, growth: Growth, sent: Sequence[int]) -> list[int]:
        return [max(sent, key=lambda node: (growth.depths[node], growth.values[node]))]

    def goes_on(self, chance: float, now: float) -> bool:
        """What would be hidden, if it is of use, against what would be waited for in any case."""
        seconds, left = self._draft.seconds(10), self._sent_at + self._away - now
        return chance * min(seconds, max(left, 0.0)) > max(seconds - left, 0.0)

    def sent(self, nodes: int, now: float) -> None:
        super().sent(nodes, now)
        self._nodes, self._sent_at = nodes, now

    def arrived(self, expected: float, accepted: int, seconds: float, forward: float) -> None:
        lost = max(seconds - forward, 0.0)
        self._transfer.observe(lost, self._nodes)
        away = lost + self._target.seconds(1, self._nodes + 1)
        self._away += (LATEST if self._away else 1.0) * (away - self._away)
        if expected > 0:
            self._scale += LATEST * (accepted / expected - self._scale)

    def _rate(self, growth: Growth, ranked: Collection[int], level: int) -> float:
        """The objective of the tree down to this level: expected tokens a second."""
        widths = [0] * (level + 1)
        for node in ranked:
            if growth.depths[node] < level:
                widths[growth.depths[node]] += 1
        drafting = sum(self._draft.seconds(width) for width in widths if width)
        best = growth.best(level)
        return self._size([growth.values[node] for node in best[1:]], drafting)[1]

    def _size(self, values: Sequence[float], drafting: float) -> tuple[int, float]:
        """How many of these nodes are sent, most valuable first, and the objective then."""
        sums = [0.0, *accumulate(values)]
        sizes = [
            *(size for size in range(10, 150, 10) if size < len(values)),
            min(len(values), 150),
        ]
        rates = [
            (
                (0.95 * self._scale * sums[size] + 1)
                / (drafting + self._transfer.seconds(size) + self._verify(size)),
                size,
            )
            for size in sizes
        ]
        rate, size = max(rates)
        return size, rate

    def _verify(self, nodes: int) -> float:
        low = nodes // 10 * 10
        ends = [self._target.seconds(1, size + 1) for size in (low, low + 10)]
        return ends[0] + (ends[1] - ends[0]) * (nodes - low) / 10

    def _width(self, values: Sequence[float], rate: float) -> int:
        """Ten more nodes are ranked where their value is worth more than the time, at the
        present rate.
        """
        width = 10
        while width < min(len(values), 150):
            if 0.95 * self._scale * sum(values[width : width + 10]) <= rate * (
                self._draft.seconds(width + 10) - self._draft.seconds(width)
            ):
                break
            width += 10
        return width
