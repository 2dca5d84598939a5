"""Features of a target, from which a head beside it drafts.

A target stores them by slot, beside its keys. A sequence of a head reads those of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from inference.backends import Model, Segment
from inference.backends.sequence import ModelSequence, TargetText
from inference.backends.timed import TimedModel
from inference.files.artifact import Manifest
from inference.model.cache import copy_states, write_states
from inference.model.checkpoints.config import parse_config
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree, TreeNodes


@runtime_checkable
class FeatureModel(Model, Protocol):
    """A target that can store features, the inputs of some layers, for heads to draft from."""

    def keep_features(self, layers: Sequence[int]) -> None:
        """From now on store the inputs of these layers, ascending, beside each node's keys.

        The number of layers stands for the last layer's output.
        """
        ...

    def features(self, row: int, slots: IntArray) -> Tensor:
        """Return the features of the nodes in these slots [n] of a row.

        The result is [n, kept layers * hidden].
        """
        ...


def feature_model(model: Model) -> FeatureModel | None:
    """Return the model that can store features, also behind emulated times; None if it cannot."""
    real = model.real if isinstance(model, TimedModel) else model
    return real if isinstance(real, FeatureModel) else None


class FeatureForm(NamedTuple):
    """Form of features: inputs of these layers of the target, ascending, `hidden` numbers each.

    The number of layers stands for the last layer's output.
    """

    layers: tuple[int, ...]
    hidden: int


NOTHING = FeatureForm((), 0)
"""Form of graphs that return no features."""


class FeatureStore:
    """Features by row and slot: zeros where nothing was written.

    layers: those whose inputs they are, ascending
    returned: form of what is written, which has the inputs of these layers
    """

    def __init__(
        self,
        layers: Sequence[int],
        returned: FeatureForm,
        rows: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers, self._returned = tuple(layers), returned
        width = len(layers) * returned.hidden
        self._held = torch.zeros((rows, slots, width), dtype=dtype, device=device)

    def read(self, row: int, slots: IntArray) -> Tensor:  # [n, layers * hidden]
        return self._held[row, torch.from_numpy(slots).to(self._held.device, torch.int64)]

    def write(self, rows: Tensor, slots: Tensor, features: Tensor) -> None:
        """Write features [B, T, returned layers * hidden] at rows [B] and slots [B, T]."""
        returned, hidden = self._returned
        if self.layers != returned:
            places = [returned.index(layer) for layer in self.layers]
            features = features.reshape(*features.shape[:2], -1, hidden)[:, :, places].flatten(2)
        write_states(self._held, rows, slots, features)

    def copy(self, source: int, target: int, slots: int) -> None:
        """Copy the first slots of row `source` to row `target`."""
        copy_states(self._held, source, target, slots)


def form_of(manifest: Manifest) -> FeatureForm:
    """The features that an artefact's graphs return with every call."""
    return FeatureForm(manifest.features, parse_config(manifest.config).hidden_size)


class KnownFeatures(NamedTuple):
    """Features of the target, from which the nodes of a head's segment are computed.

    known: how many tokens of the text have features, the first ones
    at: returns the features at known positions [n], as [n, layers * hidden]
    """

    known: int
    at: Callable[[IntArray], Tensor]


class FeatureSequence(ModelSequence):
    """A ModelSequence of a head, whose segments have KnownFeatures beside them.

    They lie by slot, beside the keys. So a cached prefix, a copied row and a row that is filled
    again have theirs. The features of all tokens in the row at the time of a call are known.

    beside: returns the text's row of the target
    """

    def __init__(
        self,
        target: FeatureModel,
        model: Model,
        row: int,
        beside: TargetText | None,
        params: SamplingParams,
    ) -> None:
        assert beside is not None, "a head drafts beside its target"
        super().__init__(model, row, params)
        self._target, self._beside = target, beside

    def prepare_chunk(self, chain: TokenTree) -> Segment:
        return self._with_features(super().prepare_chunk(chain), self.cached + len(chain))

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        segment = super().prepare_nodes(tree, nodes)  # which feeds what was committed
        return self._with_features(segment, self.cached)

    def _with_features(self, segment: Segment, below: int) -> Segment:
        """The segment with the features of tokens that are committed here: of positions `below`."""
        known = int(self._beside().slots.committed.sum())
        return segment._replace(beside=KnownFeatures(min(known, below), self._features_at))

    def _features_at(self, positions: IntArray) -> Tensor:
        """Return the features at known positions [n], as [n, layers * hidden]."""
        row, slots = self._beside()
        return self._target.features(row, slots.at(positions))
