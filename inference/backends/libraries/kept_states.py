"""Stored states of a row's text, for models with running states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from inference.tree.token_tree import IntArray

BEHIND = 8
"""Maximum tokens that a call recomputes after a stored state. If there are more, a state after them
is stored first.
"""

KEPT = 4
"""Maximum stored states of a row between calls."""


class KeptState(Protocol):
    """A state after the first tokens [n] of a text."""

    @property
    def tokens(self) -> IntArray: ...


State = TypeVar("State", bound=KeptState)


def begins(state: KeptState, text: IntArray) -> bool:
    """Whether a state belongs to a prefix of a text [m]."""
    return np.array_equal(state.tokens, text[: len(state.tokens)])


def thinned(states: Sequence[State], spared: State | None = None) -> list[State]:
    """Return KEPT of a text's states, shortest first: the last two, the spared one, and earlier
    ones with large gaps.
    """
    thin = list(states)
    while len(thin) > KEPT:
        gaps = np.diff([0, *(len(state.tokens) for state in thin[:-2])])
        candidates = [at for at, state in enumerate(thin[:-2]) if state is not spared]
        del thin[min(candidates, key=gaps.__getitem__)]
    return thin
