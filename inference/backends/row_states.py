"""Contents of slots as bytes: read from a model's tensors, and written to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.tree import IntArray


@runtime_checkable
class SlotTensors(Protocol):
    """A model that keeps all that it knows of its slots in tensors."""

    @property
    def by_slot(self) -> Sequence[Tensor]:
        """The tensors, each [rows, slots, width]."""
        ...


class TensorStates:
    """RowStates of tensors, each [rows, slots, width].

    width: bytes that a slot has in all of them
    """

    def __init__(self, held: Sequence[Tensor]) -> None:
        self._held = [tensor.view(torch.uint8) for tensor in held]
        self._widths = [tensor.shape[-1] for tensor in self._held]
        self.width, self._device = sum(self._widths), held[0].device

    def read(self, row: int, slots: IntArray) -> NDArray[np.uint8]:  # [n, width]
        places = self._places(slots)
        parts = [held[row, places] for held in self._held]
        states: NDArray[np.uint8] = torch.cat(parts, -1).cpu().numpy()
        return states

    def write(self, row: int, slots: IntArray, states: NDArray[np.uint8]) -> None:
        places, given = self._places(slots), torch.from_numpy(states).to(self._device)
        for held, part in zip(self._held, torch.split(given, self._widths, -1), strict=True):
            held[row, places] = part

    def _places(self, slots: IntArray) -> Tensor:
        return torch.from_numpy(slots).to(self._device, torch.int64)


def row_states(model: object) -> TensorStates | None:
    """Return the states of a model's slots; None where they are not in tensors of this process."""
    if not isinstance(model, SlotTensors) or model.by_slot[0].device.type == "meta":
        return None
    return TensorStates(model.by_slot)
