"""Features that a target keeps by slot, beside its keys, and those that compiled graphs return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.artifact import Manifest, features_of
from inference.errors import UnsupportedModel
from inference.model.cache import write_states
from inference.model.config import parse_config
from inference.tree import IntArray


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
    hidden: numbers of one layer's input
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


def form_of(manifest: Manifest) -> FeatureForm:
    """The features that an artefact's graphs return with every call."""
    return FeatureForm(manifest.features, parse_config(manifest.config).hidden_size)


def check_given(form: FeatureForm, asked: Sequence[int]) -> None:
    """Raise UnsupportedModel unless features of this form have the inputs of all these layers."""
    if not set(asked) <= set(form.layers):
        raise UnsupportedModel(
            f"the artefact's graphs return {features_of(form.layers)}, and {features_of(asked)} "
            f"are asked for: build it again with --features {','.join(map(str, asked))}"
        )


def select(whole: Tensor, form: FeatureForm, asked: Sequence[int]) -> Tensor:
    """Return the inputs of some layers, [B, T, asked * hidden], out of features of this form,
    [B, T, all * hidden].
    """
    if tuple(asked) == form.layers:
        return whole
    places = [form.layers.index(layer) for layer in asked]
    return whole.reshape(*whole.shape[:2], -1, form.hidden)[:, :, places].flatten(2)
