"""Candidates of a message one by one, each with its parent's number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inference.proposer import Nodes

BASE = -1
"""Number of the parent that stands for the token at a message's base."""


class Candidate(NamedTuple):
    number: int
    parent: int  # its number, or BASE
    token: int
    chance: float = 0.9


def nodes_of(
    base: int, candidates: Sequence[tuple[int, int, int, float]], proposer: int = 0
) -> Nodes:
    """The message of candidates with consecutive numbers."""
    numbers, above, tokens, chances = zip(*candidates, strict=True) if candidates else [()] * 4
    first = numbers[0] if numbers else 0
    assert list(numbers) == list(range(first, first + len(numbers)))
    back = [0 if at == BASE else number - at for number, at in zip(numbers, above, strict=True)]
    return Nodes(base, first, back, tokens, chances, proposer)


def candidates_of(nodes: Nodes) -> list[Candidate]:
    columns = zip(nodes.parents, nodes.tokens, nodes.chances, strict=True)
    return [
        Candidate(number, number - back if back else BASE, token, chance)
        for number, (back, token, chance) in enumerate(columns, nodes.first)
    ]
