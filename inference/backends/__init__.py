"""A Model for each device. `Model` is the seam: everything above it is bookkeeping on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.drafters.tree_policies import Ranked
from inference.sampling import SamplingParams
from inference.tree import IntArray
from inference.tree_shape import Branches


class Segment(NamedTuple):
    """One row's share of a forward: n new nodes, where their keys go and what they see."""

    row: int
    tokens: IntArray  # [n]
    slots: IntArray  # [n] where the new keys are written
    positions: IntArray  # [n]
    context: NDArray[
        np.bool_
    ]  # [1 or n, S] the slots each node sees (1: all nodes the same), S up to the highest in use
    tree_mask: NDArray[np.bool_]  # [n, n] which new nodes each new node sees, itself included
    pick: IntArray  # [p] the nodes to choose at
    params: SamplingParams
    draft: Segment | None = None  # the draft's share, in a round that one graph drafts and verifies


class Model(Protocol):
    """A model on a device with `rows` rows of `capacity` usable KV slots. One call at a time."""

    rows: int
    capacity: int
    max_nodes: int  # new nodes of one row in one call
    copies_rows: bool  # whether copy_row may be called

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        """The token chosen at each picked node ([p] a segment), and the new keys written. Rows
        are distinct.
        """
        ...

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """The k likeliest choices at each picked node ([p, k] a segment), and the new keys
        written. Rows are distinct.
        """
        ...

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """What a call of so many rows, of at most so many nodes each, is computed as: rows and
        nodes of each.
        """
        ...

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy the keys and values of the first `slots` slots of a row to another; what lies
        behind them there may change.
        """
        ...


@runtime_checkable
class RoundModel(Model, Protocol):
    """A Model that also makes whole rounds: its own draft grows a tree, and what the target
    accepts of it comes back.
    """

    shape: Branches  # of every tree

    @property
    def draft(self) -> Model:
        """The draft by itself: a text's tokens are fed to it before the first round."""
        ...

    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """What GraphTree.filled() takes, a segment. Tokens below the roots are not looked at;
        rows are distinct, of both models.
        """
        ...
