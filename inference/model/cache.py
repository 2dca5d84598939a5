"""KV caches: for each layer a tensor of keys and a tensor of values. Features are stored like keys.

A layer's cache is [rows, slots, width], where width is key-value heads x head dimension. So a node
writes contiguous memory, and a row is read from contiguous memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from inference.model.checkpoints.config import ModelConfig
from inference.tree.token_tree import IntArray


class KeysValues(NamedTuple):
    """Keys and values, a tensor for each layer: [rows, slots, width] in a cache, [B, nodes, width]
    for new nodes.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The keys of all layers, then the values of all layers."""
        return (*self.keys, *self.values)

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> KeysValues:
        """Create KeysValues from tensors in the order of the property `tensors`."""
        flat = tuple(tensors)
        return cls(flat[: len(flat) // 2], flat[len(flat) // 2 :])

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of all layers, each [layers, B, nodes, width]."""
        return torch.stack(self.keys), torch.stack(self.values)

    def followed_by(self, later: KeysValues) -> KeysValues:
        """Return these keys and values, followed by those of later nodes."""
        pairs = zip(self.tensors, later.tensors, strict=True)
        return KeysValues.of(torch.cat(pair, 1) for pair in pairs)


def cache_names(layers: int, which: str = "") -> tuple[str, ...]:
    """Return the names of a model's caches in graphs and artefacts, ordered as KeysValues.tensors.

    which: a prefix that distinguishes models, such as "draft_"
    """
    return tuple(f"{which}{kind}_{layer}" for kind in ("keys", "values") for layer in range(layers))


def empty_cache(
    config: ModelConfig,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KeysValues:
    """Return zeroed caches. Each row has a junk slot after its usable slots."""
    shape = (rows, capacity + 1, config.kv_heads * config.head_dim)
    return KeysValues.of(
        torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * config.layers)
    )


def read_rows(cache: Tensor, rows: Tensor, slots: int) -> Tensor:  # [B, slots, width]
    """Return the first slots of rows [B] of a layer's cache."""
    return cache[:, :slots].index_select(0, rows)


def places_of(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:  # [B * T]
    """Return the flat indices of slots [B, T] of rows [B] in a layer's cache."""
    return (rows[:, None] * cache.shape[1] + slots).flatten()


def write_slots(cache: KeysValues, rows: Tensor, slots: Tensor, new: KeysValues) -> None:
    """Write keys and values of new nodes in place, at rows [B] and slots [B, T]."""
    places = places_of(cache.keys[0], rows, slots).long()
    for target, source in zip(cache.tensors, new.tensors, strict=True):
        target.flatten(0, 1).index_copy_(0, places, source.flatten(0, 1))


def write_states(states: Tensor, rows: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write new [B, T, width] in place to states [rows, slots, width] at rows [B], slots [B, T]."""
    states.flatten(0, 1).index_copy_(0, places_of(states, rows, slots).long(), new.flatten(0, 1))


def copy_states(states: Tensor, source: int, target: int, slots: int) -> None:
    """Copy the first slots of row `source` of states [rows, slots, width] to row `target`."""
    states[target, :slots] = states[source, :slots]


class CachedGraph(nn.Module):
    """A module with the caches of one or more models as buffers, named by cache_names().

    If the caches stay on the device, its graph reassigns them by `write` and `copy_row`, which
    reuses their memory. Each write of a node in a layer is contiguous.
    """

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[str, int] = {}

    def hold(self, cache: KeysValues, which: str = "") -> None:
        """Register a model's caches."""
        self._layers[which] = len(cache.keys)
        for name, tensor in zip(self.names(which), cache.tensors, strict=True):
            self.register_buffer(name, tensor, persistent=False)

    def names(self, which: str = "") -> tuple[str, ...]:
        """Return the names of a model's caches."""
        return cache_names(self._layers[which], which)

    def cache(self, which: str = "") -> KeysValues:
        """Return a model's caches."""
        return KeysValues.of(self.get_buffer(name) for name in self.names(which))

    def write(self, rows: Tensor, slots: Tensor, new: KeysValues, which: str = "") -> None:
        """Reassign a model's caches with new keys and values at rows [B] and slots [B, T]."""
        places = places_of(self.cache(which).keys[0], rows, slots)
        for name, source in zip(self.names(which), new.tensors, strict=True):
            buffer = self.get_buffer(name)
            written = buffer.flatten(0, 1).index_put((places,), source.flatten(0, 1))
            setattr(self, name, written.view(buffer.shape))

    def copy_row(self, source: Tensor, target: Tensor, which: str = "") -> None:
        """Copy a row of a model's caches to another one. source, target: [1], numbers of rows"""
        for name in self.names(which):
            buffer = self.get_buffer(name)
            setattr(self, name, buffer.index_put((target,), buffer.index_select(0, source)))

    def touch(self, rows: Tensor, which: str = "") -> None:
        """Reassign a model's caches, usable slots unchanged: copy the first slots of rows [B],
        which are finite, to the junk slots. All graphs of a package have to reassign all state.
        """
        cache = self.cache(which)
        junk = torch.full_like(rows[:, None], cache.keys[0].shape[1] - 1)
        firsts = KeysValues.of(read_rows(tensor, rows, 1) for tensor in cache.tensors)
        self.write(rows, junk, firsts, which)


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
