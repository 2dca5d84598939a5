"""Stored states of a row's text, for models with a running state instead of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from inference.tree.token_tree import IntArray

BEHIND = 8
"""Maximum tokens that a call computes again after a stored state. If there are more, it stores a
state at their end first.
"""

KEPT = 4
"""Maximum stored states of a row between two calls."""


class KeptState(Protocol):
    """A state behind the first tokens [n] of a text."""

    @property
    def tokens(self) -> IntArray: ...


State = TypeVar("State", bound=KeptState)


def begins(state: KeptState, text: IntArray) -> bool:
    """Whether a state is of the first tokens of a text [m]."""
    return np.array_equal(state.tokens, text[: len(state.tokens)])


def thinned(held: Sequence[State], spared: State | None = None) -> list[State]:
    """Return KEPT of a text's states, the shortest first: the last two, the one that is to be
    spared, and earlier ones that lie far apart.
    """
    kept = list(held)
    while len(kept) > KEPT:
        gaps = np.diff([0, *(len(state.tokens) for state in kept[:-2])])
        others = [at for at, state in enumerate(kept[:-2]) if state is not spared]
        del kept[min(others, key=gaps.__getitem__)]
    return kept
