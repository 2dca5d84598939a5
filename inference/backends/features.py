"""Features of a target: what enters some of its layers, kept for each token beside its keys.

Heads that draft beside the target read them. A target gives them by row and slot, so a cached
prefix, a copied row and a row that is filled again have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from inference.artifact import Manifest, features_of
from inference.errors import UnsupportedModel
from inference.model.cache import write_states
from inference.model.config import parse_config
from inference.tree import IntArray


@runtime_checkable
class KeepsFeatures(Protocol):
    """A target whose features can be read."""

    def keep_features(self, layers: Sequence[int]) -> None:
        """From now on keep the inputs of these layers, ascending, beside each node's keys.

        The number of layers stands for the last layer's output. Raises UnsupportedModel for a layer
        whose input the target does not give.
        """
        ...

    def features(self, row: int, slots: IntArray) -> Tensor:  # [n, kept layers * hidden]
        """Return the features of the nodes in these slots [n] of a row."""
        ...


class FeatureStore:
    """Features by row and slot: zeros where nothing was written.

    layers: those whose inputs they are, ascending
    """

    def __init__(
        self,
        layers: Sequence[int],
        hidden: int,
        rows: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        width = len(layers) * hidden
        self._held = torch.zeros((rows, slots, width), dtype=dtype, device=device)

    def read(self, row: int, slots: IntArray) -> Tensor:  # [n, layers * hidden]
        return self._held[row, torch.from_numpy(slots).to(self._held.device, torch.int64)]

    def write(self, rows: Tensor, slots: Tensor, features: Tensor) -> None:
        """Write features [B, T, layers * hidden] at rows [B] and slots [B, T]."""
        write_states(self._held, rows, slots, features)

    def copy(self, source: int, target: int, slots: int) -> None:
        """Copy the first slots of row `source` to row `target`."""
        self._held[target, :slots] = self._held[source, :slots]


class GraphFeatures(NamedTuple):
    """Features that a compiled target's graphs return with every call.

    layers: those whose inputs they are, ascending
    hidden: numbers of one layer's input
    """

    layers: tuple[int, ...] = ()
    hidden: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> GraphFeatures:
        return cls(manifest.features, parse_config(manifest.config).hidden_size)

    def check(self, asked: Sequence[int]) -> None:
        """Raise UnsupportedModel unless the inputs of all these layers are returned."""
        if not set(asked) <= set(self.layers):
            raise UnsupportedModel(
                f"the artefact's graphs return {features_of(self.layers)}, and "
                f"{features_of(asked)} are asked for: build it again with --features "
                f"{','.join(map(str, asked))}"
            )

    def select(self, whole: Tensor, asked: Sequence[int]) -> Tensor:  # [B, T, asked * hidden]
        """Return what is asked for of a graph's features [B, T, all * hidden]."""
        if tuple(asked) == self.layers:
            return whole
        places = [self.layers.index(layer) for layer in asked]
        return whole.reshape(*whole.shape[:2], -1, self.hidden)[:, :, places].flatten(2)


NO_FEATURES = GraphFeatures()
