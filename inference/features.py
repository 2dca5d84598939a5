"""Features on the wire: what a target has computed at the tokens of a text, as a head reads it, in
8-bit integers. Pure: no model, no network.

A layer's numbers at one position share a scale, the greatest magnitude over 127. So each number is
off by 1/254 of that magnitude at most.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SCALE_BYTES = 4
LARGEST = np.float32(1e30)
"""Greatest magnitude of a number, so that whatever is made of it stays finite."""

_STEPS = np.float32(127)


class FeatureForm(NamedTuple):
    """Which features: the inputs of these layers of the target, ascending, each so wide.

    The number of layers stands for the last layer's output.
    """

    layers: tuple[int, ...]
    hidden: int

    @property
    def position_bytes(self) -> int:
        """Bytes of one position on the wire, without framing."""
        return len(self.layers) * (self.hidden + SCALE_BYTES)

    def __str__(self) -> str:
        return f"inputs of layers {', '.join(map(str, self.layers))}, {self.hidden} numbers each"


class FeatureRequest(NamedTuple):
    """What a client asks for: features from position `first` on. 0 bytes a second: no more."""

    form: FeatureForm
    first: int
    bytes_per_second: int


class FeatureBlock(NamedTuple):
    """Features of n positions that follow each other, the first at `position`."""

    position: int
    scales: NDArray[np.float32]  # [n, layers]
    values: NDArray[np.int8]  # [n, layers, hidden]


class FeatureSink(Protocol):
    """Where a client's session puts the features of one text at a time."""

    @property
    def form(self) -> FeatureForm: ...

    @property
    def request(self) -> FeatureRequest | None:
        """What the target is to be asked for now; None for nothing."""
        ...

    def begin(self, length: int) -> None:
        """A text begins, with a prompt of so many tokens."""
        ...

    def take(self, block: FeatureBlock) -> bool:
        """Take features; whether more are wanted. Raises Mismatch for those that it has."""
        ...


def to_int8(position: int, states: NDArray[np.float32]) -> FeatureBlock:
    """Round states [n, layers, hidden] of positions from `position` on. What is no number is 0."""
    known = np.clip(np.nan_to_num(states, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
    scales = np.abs(known).max(-1) / _STEPS
    steps = known / np.maximum(scales, np.finfo(np.float32).tiny)[..., None]
    return FeatureBlock(position, scales, np.rint(steps).astype(np.int8))


def from_int8(scales: NDArray[np.float32], values: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return the states [n, layers * hidden] that these scales [n, layers] and values
    [n, layers, hidden] stand for.
    """
    return (scales[..., None] * values).reshape(len(values), -1)
