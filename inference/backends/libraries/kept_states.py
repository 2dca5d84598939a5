"""Which states of a row's tokens are stored, for models with running states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from inference.tree.token_tree import IntArray

BEHIND = 8
"""Maximum tokens that a forward pass recomputes after a stored state. If there are more, the state
after them is stored first.
"""

KEPT = 4
"""Maximum stored states of a row between forward passes."""


class KeptState(Protocol):
    """The state after the first tokens [n] of a row."""

    @property
    def tokens(self) -> IntArray: ...


State = TypeVar("State", bound=KeptState)


def begins(state: KeptState, text: IntArray) -> bool:
    """Return whether a state belongs to a prefix of the tokens `text` [m]."""
    return np.array_equal(state.tokens, text[: len(state.tokens)])


def thinned(states: Sequence[State], spared: State | None = None) -> list[State]:
    """Return up to KEPT states to store, shortest prefix first: the last two, the spared state, and
    earlier states with large gaps between them.
    """
    thin = list(states)
    while len(thin) > KEPT:
        gaps = np.diff([0, *(len(state.tokens) for state in thin[:-2])])
        candidates = [at for at, state in enumerate(thin[:-2]) if state is not spared]
        del thin[min(candidates, key=gaps.__getitem__)]
    return thin
