"""How Saguaro and UCB-SpecStop draft chains, restated as rules on our engine from their
descriptions.

What rivals are given is said in rival_trees.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from benchmarks.regret.betting import LATEST, Rule
from benchmarks.regret.growth import Growth
from inference.times import DraftTimes, LatencyModel

LONGEST = 16
"""Longest chain that a StoppingRule chooses, in tokens."""


class Chains(Rule):
    """A chain of the likeliest tokens is drafted and sent.

    length: tokens of the next chain
    """

    length: int

    def expand(self, growth: Growth, ranked: Collection[int], deepest: int) -> list[int]:
        end = _line(growth, ranked, 0)[-1]
        return [end] if growth.depths[end] < min(self.length, deepest) else []

    def select(self, growth: Growth, deepest: int) -> list[int]:
        parents = set(growth.parents)
        line = _line(growth, parents, 0)
        return line[: 1 + min(self.length, deepest, growth.limit)]


class Outcomes(Chains):
    """A chain, and while it is verified another one for each of its likely outcomes, as Saguaro
    drafts (arXiv 2603.03251): wherever the target may leave the chain, `fan` tokens that it may
    say there.

    Every call goes one level deeper below all outcomes at once.
    """

    def __init__(self, length: int, fan: int) -> None:
        self.length, self._fan = length, fan

    def ahead(
        self,
        growth: Growth,
        ranked: Collection[int],
        sent: Sequence[int],
        deepest: int,
        now: float,
    ) -> list[int]:
        last, held = sent[-1], set(sent)
        nodes = [] if last in ranked or growth.depths[last] >= deepest else [last]
        for place in sent:
            others = [node for node in _children(growth, place) if node not in held]
            for outcome in others[: self._fan]:
                end = _line(growth, ranked, outcome)[-1]
                drafted = growth.depths[end] - growth.depths[outcome]
                if drafted < self.length and growth.depths[end] < deepest and end not in ranked:
                    nodes.append(end)
        return nodes


class StoppingRule(Chains):
    """A chain as long as a token takes least by what was seen, as UCB-SpecStop chooses it (arXiv
    2606.20591): a ratio of sums, round times over tokens, with a bonus for lengths that were seldom
    tried. Expected tokens are 1 plus the chances that the first, the first two, ... are all taken;
    a longer chain shows those of shorter ones, too.

    round_trip: seconds, before the first round; what is measured moves it
    """

    def __init__(self, draft: DraftTimes, target: LatencyModel, round_trip: float) -> None:
        self._draft, self._target, self._round_trip = draft, target, round_trip
        self._tries, self._hits = [0] * LONGEST, [0] * LONGEST
        self._nodes = self._rounds = 0
        self.length = self._best()

    def sent(self, nodes: int, now: float) -> None:
        self._nodes = nodes

    def arrived(self, expected: float, accepted: int, seconds: float, forward: float) -> None:
        self._rounds += 1
        self._round_trip += LATEST * (max(seconds - forward, 0.0) - self._round_trip)
        for level in range(self._nodes):
            self._tries[level] += 1
            self._hits[level] += accepted > level
        self.length = self._best()

    def _best(self) -> int:
        best, least, tokens, chance = 0, self._seconds(0), 1.0, 1.0
        for level in range(LONGEST):
            chance = min(chance, self._chance(level))
            tokens += chance
            if self._seconds(level + 1) / tokens < least:
                best, least = level + 1, self._seconds(level + 1) / tokens
        return best

    def _chance(self, level: int) -> float:
        """Upper bound of the chance that the target takes one token more than `level`."""
        tries = self._tries[level]
        if not tries:
            return 1.0
        bonus = math.sqrt(math.log(max(self._rounds, 1)) / (2 * tries))
        return min(self._hits[level] / tries + bonus, 1.0)

    def _seconds(self, length: int) -> float:
        """Expected seconds of a round with a chain of this length."""
        return (
            length * self._draft.seconds(1) + self._round_trip + self._target.seconds(1, length + 1)
        )


def _line(growth: Growth, ranked: Collection[int], node: int) -> list[int]:
    """A node and the likeliest ones below it, as far as their parents were ranked."""
    line = [node]
    while line[-1] in ranked and (below := _children(growth, line[-1])):
        line.append(below[0])
    return line


def _children(growth: Growth, node: int) -> list[int]:
    """The nodes right below this one, the likeliest first."""
    below = [child for child in range(node + 1, len(growth)) if growth.parents[child] == node]
    return sorted(below, key=growth.values.__getitem__, reverse=True)
