"""Random trees under construction, and their subtrees."""

from __future__ import annotations

import random

from benchmarks.regret.growth import Growth


def grown(seed: int, nodes: int = 60, limit: int = 10) -> Growth:
    """A random tree; edges are such that several values are equal."""
    dice, growth = random.Random(seed), Growth(7, limit)
    for token in range(1, nodes):
        growth.add(dice.randrange(token), token, dice.choice([0.25, 0.5]))
    return growth


def below(growth: Growth, root: int) -> list[int]:
    """The nodes under `root`, found by walking up from each."""

    def ancestors(node: int) -> list[int]:
        return (
            []
            if growth.parents[node] < 0
            else [growth.parents[node], *ancestors(growth.parents[node])]
        )

    return [node for node in range(len(growth)) if root in ancestors(node)]
