"""The sequence of a head: its calls read what the target has computed at the tokens of its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from inference.backends import FeatureModel, Led, Model, Segment
from inference.backends.sequence import ModelSequence
from inference.backends.shared_sequence import TargetRow
from inference.sampling import SamplingParams
from inference.tree import IntArray, TokenTree, TreeNodes


class LedSequence(ModelSequence):
    """A ModelSequence whose segments are led by features of the target.

    features: of the text, those that are known at the time of a call
    """

    def __init__(
        self, model: Model, row: int, params: SamplingParams, *, features: RowFeatures
    ) -> None:
        super().__init__(model, row, params)
        self._features = features

    def prepare_chunk(self, chain: TokenTree) -> Segment:
        return self._led(super().prepare_chunk(chain), self.cached + len(chain))

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        segment = super().prepare_nodes(tree, nodes)  # which feeds what was committed
        return self._led(segment, self.cached)

    def _led(self, segment: Segment, below: int) -> Segment:
        """The segment with the features of tokens that are committed here: of positions `below`."""
        return segment._replace(led=Led(min(self._features.known, below), self._features.at))


class RowFeatures:
    """Features that a target in this process keeps, of the text on one of its rows.

    They lie by slot, beside the keys. So a cached prefix, a copied row and a row that is filled
    again have theirs.

    where: returns the text's row, at the time of a call
    """

    def __init__(self, target: FeatureModel, where: Callable[[], TargetRow]) -> None:
        self._target, self._where = target, where

    @property
    def known(self) -> int:
        """How many tokens have features: all that the row has, the first ones of the text."""
        return int(self._where().slots.committed.sum())

    def at(self, positions: IntArray) -> Tensor:
        """Return the features at known positions [n], as [n, layers * hidden]."""
        row, slots = self._where()
        return self._target.features(row, slots.at(positions))
