"""KV caches: for each layer one tensor of keys and one of values.

A layer's cache is [rows, slots, width], where the width is all key-value heads times the head
dimension. So what one node writes is one run of memory, and so is what is read of one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from inference.model.checkpoints.config import ModelConfig


class KeysValues(NamedTuple):
    """Keys and values, a tensor for each layer.

    In a cache they are [rows, slots, width]. Those of new nodes are [B, nodes, width].
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every layer's keys, then every layer's values."""
        return (*self.keys, *self.values)

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> KeysValues:
        """Create them from tensors in the order of `tensors`."""
        every = tuple(tensors)
        return cls(every[: len(every) // 2], every[len(every) // 2 :])

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of all layers, each [layers, B, nodes, width]."""
        return torch.stack(self.keys), torch.stack(self.values)

    def followed_by(self, later: KeysValues) -> KeysValues:
        """Return these nodes' keys and values, then those of later nodes."""
        pairs = zip(self.tensors, later.tensors, strict=True)
        return KeysValues.of(torch.cat(pair, 1) for pair in pairs)


def cache_names(layers: int, which: str = "") -> tuple[str, ...]:
    """Return the names of a model's caches in graphs and artefacts, in the order of
    KeysValues.tensors.

    which: a prefix that distinguishes models, such as "draft_"
    """
    return tuple(f"{which}{part}_{layer}" for part in ("keys", "values") for layer in range(layers))


def empty_cache(
    config: ModelConfig,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KeysValues:
    """Return zeroed caches. Each row has one junk slot after its usable ones."""
    shape = (rows, capacity + 1, config.kv_heads * config.head_dim)
    return KeysValues.of(
        torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * config.layers)
    )


def read_rows(cache: Tensor, rows: Tensor, slots: int) -> Tensor:  # [B, slots, width]
    """Return the first slots of these rows [B] of one layer's cache."""
    return cache[:, :slots].index_select(0, rows)


def places_of(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:  # [B * T]
    """Return where slots [B, T] of rows [B] lie among all slots of a layer's cache."""
    return (rows[:, None] * cache.shape[1] + slots).flatten()


def write_slots(cache: KeysValues, rows: Tensor, slots: Tensor, new: KeysValues) -> None:
    """Write new nodes' keys and values, in place, at rows [B] and slots [B, T]."""
    places = places_of(cache.keys[0], rows, slots).long()
    for held, part in zip(cache.tensors, new.tensors, strict=True):
        held.flatten(0, 1).index_copy_(0, places, part.flatten(0, 1))


def write_states(held: Tensor, rows: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write new nodes' states [B, T, width] to held [rows, slots, width], in place."""
    held.flatten(0, 1).index_copy_(0, places_of(held, rows, slots).long(), new.flatten(0, 1))


def copy_states(held: Tensor, source: int, target: int, slots: int) -> None:
    """Copy the first slots of row `source` of held [rows, slots, width] to row `target`."""
    held[target, :slots] = held[source, :slots]


class CachedGraph(nn.Module):
    """A module that holds models' caches as buffers, named by cache_names().

    A graph whose device keeps the caches reassigns them by `write` and `copy_row`: the buffers'
    memory is then reused. Each write is of whole runs of memory, one a node and layer.
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
        for name, part in zip(self.names(which), new.tensors, strict=True):
            held = self.get_buffer(name)
            written = held.flatten(0, 1).index_put((places,), part.flatten(0, 1))
            setattr(self, name, written.view(held.shape))

    def copy_row(self, source: Tensor, target: Tensor, which: str = "") -> None:
        """Reassign a model's caches so that row target [1] is a copy of row source [1]."""
        for name in self.names(which):
            held = self.get_buffer(name)
            setattr(self, name, held.index_put((target,), held.index_select(0, source)))

    def touch(self, rows: Tensor, which: str = "") -> None:
        """Reassign a model's caches: copy the first slots of these rows [B], which are finite, to
        the junk slots. All graphs of a package have to reassign all of its state.
        """
        cache = self.cache(which)
        junk = torch.full_like(rows[:, None], cache.keys[0].shape[1] - 1)
        firsts = KeysValues.of(read_rows(held, rows, 1) for held in cache.tensors)
        self.write(rows, junk, firsts, which)
