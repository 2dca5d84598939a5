"""The rule by which one text's tokens are chosen: penalties, biases and a grammar.

It is a function of the text's prefix. So what it says at a node of a tree follows from the
committed tokens and the node's path, and no candidate can change a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.sampling import SamplingParams
from inference.tree import IntArray, TreeNodes

FloatArray = NDArray[np.float32]


class Adjustment(NamedTuple):
    """What the logits at p picked nodes are adjusted by.

    A row is padded with id 0, factor 1 and bias 0, so that the padding adds a change of 0.
    """

    allowed: IntArray | None  # [p, ceil(V / 32)] a bit for each id, lowest first; None: all are
    ids: IntArray  # [p, m] distinct within a row but for the padding
    factors: FloatArray  # [p, m] divide a logit above 0, and multiply one below
    biases: FloatArray  # [p, m] added behind that


class Matcher(Protocol):
    """The state of a grammar behind some tokens."""

    def consume(self, token: int) -> bool:
        """Go on by a token; False where the grammar excludes it, and nothing changes."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...

    def fill(self, allowed: IntArray) -> None:  # [ceil(V / 32)]
        """Set the bits of the ids that may follow, and clear all others."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that have to follow, as far as that is known."""
        ...


class TokenRule:
    """The rule of one text, as far as the text is committed."""

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, matcher: Matcher | None
    ) -> None:
        """Raises InvalidRequest where the prompt's last `made` tokens break the grammar."""
        raise NotImplementedError

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens."""
        raise NotImplementedError

    def adjust(self, tree: TreeNodes, nodes: Sequence[int]) -> Adjustment:
        """Return what adjusts the logits at these nodes of a tree.

        The root, whose parent is -1, is the last committed token. A node that the grammar excludes
        lets everything pass: the target never comes to it.
        """
        raise NotImplementedError

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        """Return tokens that the grammar forces behind the committed text and this path."""
        raise NotImplementedError

    def allows(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it may follow the committed text and this path."""
        raise NotImplementedError
