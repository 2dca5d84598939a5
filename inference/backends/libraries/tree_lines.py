"""Trees in other libraries: their lines, one for each leaf, the states that lines begin with, and a
small tree whose logits show, when a model is loaded, whether it respects masks and positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.errors import InvalidRequest
from inference.tree.token_tree import IntArray, TokenTree


class TreeLine(NamedTuple):
    """A chain of a segment's new nodes, and the context that these nodes see."""

    nodes: NDArray[np.intp]  # [d] from the top down
    path: IntArray  # [c] visible slots, ordered by position


def tips(segment: Segment) -> NDArray[np.intp]:
    """Return the leaves among the new nodes."""
    return np.flatnonzero(segment.tree_mask.sum(axis=0) == 1)


def path_of(positions: IntArray, visible: NDArray[np.bool_]) -> IntArray:
    """Return the visible slots, ordered by position.

    positions: [S or more] position of each slot
    visible: [S]

    Raises InvalidRequest unless the visible positions are 0 to n - 1.
    """
    slots = np.flatnonzero(visible)
    ordered = positions[slots]
    order = ordered.argsort(kind="stable")
    if not np.array_equal(ordered[order], np.arange(len(slots))):
        raise InvalidRequest(
            f"this model needs one key at each position: {len(slots)} slots hold others"
        )
    return np.asarray(slots[order], dtype=np.int32)


def lines_of(segment: Segment, positions: IntArray) -> Iterator[TreeLine]:
    """Yield the lines of a segment. positions: see path_of().

    Raises InvalidRequest if a node's position is not the number of visible keys before the node.
    """
    shared = segment.context.shape[0] == 1
    path = path_of(positions, segment.context[0]) if shared else None
    for tip in tips(segment).tolist():
        nodes = np.flatnonzero(segment.tree_mask[tip])
        nodes = nodes[segment.positions[nodes].argsort(kind="stable")]
        above = path_of(positions, segment.context[tip]) if path is None else path
        expected = np.arange(len(above), len(above) + len(nodes))
        if not np.array_equal(segment.positions[nodes], expected) or (
            path is None and (segment.context[nodes] != segment.context[tip]).any()
        ):
            raise InvalidRequest("this model needs a tree whose nodes see all above them")
        yield TreeLine(nodes, above)


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


_PROMPT, _NODES = 3, 5
_PARENTS, _PATHS = (-1, 0, 0, 1, 2), ((0, 1, 3), (0, 2, 4))

_MAX_DIFFERENCE, _MAX_NARROW_DIFFERENCE = 1e-3, 0.2
"""Maximum difference of logits relative to their spread: in float32, and in narrower types, where
rounding may select different experts.
"""


class TreeTrial(NamedTuple):
    """A prompt of three tokens, and a tree with a root and two branches of two nodes."""

    prompt: list[int]
    tree: TokenTree

    @classmethod
    def of(cls, vocabulary: int) -> TreeTrial:
        ids = (7 * np.arange(_PROMPT + _NODES, dtype=np.int32) + 1) % vocabulary
        parents = np.array(_PARENTS, dtype=np.int32)
        return cls(ids[:_PROMPT].tolist(), TokenTree(ids[_PROMPT:], parents))

    @property
    def tokens(self) -> int:
        """The number of tokens in prompt and tree."""
        return len(self.prompt) + len(self.tree.tokens)

    @property
    def paths(self) -> IntArray:  # [2, 6]
        """The tokens of each path, from the first token of the prompt to the leaf."""
        lists = [[*self.prompt, *self.tree.tokens[list(path)]] for path in _PATHS]
        return np.array(lists, dtype=np.int32)

    def check(
        self, nodes: NDArray[np.float32], paths: NDArray[np.float32], *, float32: bool
    ) -> None:
        """Raise ValueError unless the logits of nodes [5, V] and of paths [2, 6, V] agree."""
        actual, expected = nodes[np.array(_PATHS)], paths[:, _PROMPT:]
        spread = np.linalg.norm(expected - expected.mean(-1, keepdims=True))
        off = float(np.linalg.norm(actual - expected) / spread)
        if not off <= (_MAX_DIFFERENCE if float32 else _MAX_NARROW_DIFFERENCE):
            raise ValueError(
                f"a tree's logits differ from those of its paths by {off:.2g} of their spread, so "
                "it does not follow masks and positions"
            )
