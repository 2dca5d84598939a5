"""What other systems draft, restated as rules on our engine: ideas only, from their descriptions.

Both get the target's own noise for ranking, which their own programs do not have, and at temperature 0 lose nothing by it: above it
they are better here than at home. Times and prices are told them as they would have measured them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Protocol

from inference.growth import Growth
from inference.times import DraftTimes, TargetTimes

_EMA = 0.2


class BudgetTree:
    """One bet beside a tree of fixed size, as SpecEdge drafts (arXiv 2505.17052).

    The tree holds the `nodes` most probable nodes and grows as long as a new one is among them; each level costs a tenth of the
    probability. The bet is the most probable pair of a leaf and a token after it, below which a tree of the same kind grows until the
    verdict is here.
    """

    decay = 0.9

    def __init__(self, nodes: int = 32, depth: int = 16) -> None:
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

    def goes_on(self, chance: float) -> bool:
        return True

    def sent(self, nodes: int) -> None: ...

    def arrived(self, expected: float, accepted: int) -> None: ...


class Transfer(Protocol):
    """What somebody believes that a link takes for a round's nodes; it is told what it took."""

    def observe(self, seconds: float, nodes: int) -> None: ...

    def seconds(self, nodes: int) -> float: ...


class TransferByNode:
    """Every node takes its share, as AutoDraft measures it: so a round trip looks like many small costs, and few nodes seem cheap."""

    def __init__(self) -> None:
        self._each = 0.0

    def observe(self, seconds: float, nodes: int) -> None:
        self._each += (_EMA if self._each else 1.0) * (seconds / max(nodes, 1) - self._each)

    def seconds(self, nodes: int) -> float:
        return nodes * self._each


class TransferByRound:
    """A round takes the same whatever is in it: what AutoDraft's rule could be with a round trip in its model."""

    def __init__(self) -> None:
        self._round = 0.0

    def observe(self, seconds: float, nodes: int) -> None:
        self._round += (_EMA if self._round else 1.0) * (seconds - self._round)

    def seconds(self, nodes: int) -> float:
        return self._round


class ObjectiveTree:
    """A tree by AutoDraft's objective at its fastest setting, and its bet on the deepest leaf.

    Expected tokens a second are (0.95 * scale * values added up + 1) / (drafting + transfer + verifying), the last by interpolation.
    `scale` follows what was accepted. Widths and sizes are multiples of ten up to 150. Levels are added as long as the objective rises.

    lost: seconds of all exchanges so far, less what the target computed.
    """

    decay = 1.0

    def __init__(
        self,
        draft: DraftTimes,
        target: TargetTimes,
        transfer: Transfer,
        lost: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._draft, self._target, self._transfer, self._lost, self._now = (
            draft,
            target,
            transfer,
            lost,
            now,
        )
        self._scale, self._away = 1.0, 0.0
        self._nodes, self._sent_at, self._lost_before = 0, 0.0, 0.0

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

    def goes_on(self, chance: float) -> bool:
        """What would be hidden, if it is of use, against what would be waited for in any case."""
        seconds, left = self._draft.seconds(10), self._sent_at + self._away - self._now()
        return chance * min(seconds, max(left, 0.0)) > max(seconds - left, 0.0)

    def sent(self, nodes: int) -> None:
        self._nodes, self._sent_at, self._lost_before = nodes, self._now(), self._lost()

    def arrived(self, expected: float, accepted: int) -> None:
        lost = self._lost() - self._lost_before
        self._transfer.observe(lost, self._nodes)
        self._away += (_EMA if self._away else 1.0) * (
            lost + self._target.seconds(1, self._nodes + 1) - self._away
        )
        if expected > 0:
            self._scale += _EMA * (accepted / expected - self._scale)

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
        """Ten more nodes are ranked where their value is worth more than the time, at the present rate."""
        width = 10
        while width < min(len(values), 150):
            if 0.95 * self._scale * sum(values[width : width + 10]) <= rate * (
                self._draft.seconds(width + 10) - self._draft.seconds(width)
            ):
                break
            width += 10
        return width
