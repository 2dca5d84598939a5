"""Tests the model of another library with a small tree at load time.

The logits show whether the model respects masks and positions, so no list of supported
architectures is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.tree.token_tree import IntArray, TokenTree

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
