"""Features of a target, from which a head in the same process drafts. The target stores them by
slot, like keys, and the head's sequences read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from inference.backends import Model, Segment
from inference.backends.sequence import ModelSequence, TargetText
from inference.backends.wrappers import TimedModel
from inference.files.artifact import Manifest
from inference.model.cache import copy_states, write_states
from inference.model.checkpoints.config import parse_config
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree, TreeNodes


@runtime_checkable
class FeatureModel(Model, Protocol):
    """A target that can store features for heads: the inputs of some layers."""

    def keep_features(self, layers: Sequence[int]) -> None:
        """From now on, store the inputs of these layers (ascending) for each node. A layer number
        equal to the number of layers means the last layer's output.
        """
        ...

    def features(self, row: int, slots: IntArray) -> Tensor:
        """Return the features [n, layers * hidden] of the nodes in slots [n] of a row."""
        ...


def feature_model(model: Model) -> FeatureModel | None:
    """Return the model, or the real model of an emulation, if it can store features; else None."""
    real = model.real if isinstance(model, TimedModel) else model
    return real if isinstance(real, FeatureModel) else None


class FeatureForm(NamedTuple):
    """The form of features: inputs of these layers (ascending), `hidden` numbers each.

    A layer number equal to the number of layers means the last layer's output.
    """

    layers: tuple[int, ...]
    hidden: int


NOTHING = FeatureForm((), 0)
"""The form of a model that returns no features."""


class FeatureStore:
    """A store of features by row and slot, initially zero.

    layers: layers to store, ascending
    returned: form of the features passed to write(), which includes these layers
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
        """Copy the features of the first slots of row `source` to row `target`."""
        copy_states(self._held, source, target, slots)


def form_of(manifest: Manifest) -> FeatureForm:
    """Return the form of the features that an artefact's graphs return."""
    return FeatureForm(manifest.features, parse_config(manifest.config).hidden_size)


class KnownFeatures(NamedTuple):
    """The target's features for a head's segment.

    tokens: number of leading tokens of the sequence whose features are known
    at: returns the features [n, layers * hidden] at known positions [n]
    """

    tokens: int
    at: Callable[[IntArray], Tensor]


class FeatureSequence(ModelSequence):
    """A ModelSequence of a head, whose segments contain KnownFeatures.

    The target stores features by slot, so cached prefixes and copied rows also have features. The
    features of all tokens in the target's row are known.

    beside: returns the session's current row in the target
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
        segment = super().prepare_nodes(tree, nodes)  # may prefill pending tokens
        return self._with_features(segment, self.cached)

    def _with_features(self, segment: Segment, below: int) -> Segment:
        """Return the segment with the known features at positions below `below`."""
        count = int(self._beside().slots.committed.sum())
        return segment._replace(beside=KnownFeatures(min(count, below), self._features_at))

    def _features_at(self, positions: IntArray) -> Tensor:
        """Return the features [n, layers * hidden] at known positions [n]."""
        row, slots = self._beside()
        return self._target.features(row, slots.at(positions))
