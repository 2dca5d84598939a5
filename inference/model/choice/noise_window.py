"""Noise as state: graphs store the noise of the next positions, which a small separate graph
computes while the target is idle.

Each cache row has a window of WINDOW positions; position p is at place p mod WINDOW. Values equal
those of noise() in float32, since 16 bits would sometimes change choices. With 128,256 ids on two
ranks, a row takes 8 MB per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.choice.arithmetic import Arithmetic
from inference.model.choice.sampler import Sampling
from inference.sampling import SamplingParams

WINDOW = 32
"""Positions in the window of a row: a power of two."""

FILLED = 16
"""Number of places that one call fills, in any rows; fewer are padded."""


class NoisePlace(NamedTuple):
    """Identifies the noise for a position of a cache row."""

    row: int
    position: int  # position of the token to choose
    seed: int


def empty_window(rows: int, ids: int, device: torch.device | str = "cpu") -> Tensor:
    """Return zeroed windows [rows * WINDOW, ids of a rank] float32."""
    return torch.zeros(rows * WINDOW, ids, device=device)


def fill_inputs(places: Sequence[NoisePlace]) -> dict[str, Tensor]:
    """Return the inputs, by name, with which a stateful graph fills 1 to FILLED places."""
    padded = [*places, *[places[0]] * (FILLED - len(places))]
    params = [SamplingParams(1.0, seed=place.seed) for place in padded]
    return {
        "rows": torch.tensor([place.row for place in padded], dtype=torch.int32),
        "after": torch.tensor([[place.position] for place in padded], dtype=torch.int32),
        "seed": Sampling.of(params, torch.device("cpu")).seed,
    }


class KeepsNoise(nn.Module):
    """A graph with noise windows in addition to its caches, unless it is greedy."""

    noise: Tensor | None

    def hold_noise(self, window: Tensor | None) -> None:
        """Register the windows of all rows."""
        self.register_buffer("noise", window, persistent=False)

    def noise_at(self, rows: Tensor, positions: Tensor) -> Tensor:  # [B], [B, P] -> [B, P, V]
        """Return the noise at positions that were filled before."""
        assert self.noise is not None, "a sampled call of a graph without noise windows"
        return F.embedding(window_places(rows[:, None], positions), self.noise)

    def fill_noise(
        self, rows: Tensor, positions: Tensor, seed: Tensor, ids: Tensor, by: Arithmetic
    ) -> None:
        """Compute noise and reassign the windows.

        rows: [N] int32
        positions: [N, 1] int32
        seed: [N, 2] int32
        ids: [V] int32, ids of this rank
        """
        assert self.noise is not None, "a graph without noise windows cannot fill them"
        values = by.noise(seed[:, None], positions, ids)
        self.noise = self.noise.index_put((window_places(rows, positions[:, 0]),), values)

    def touch_noise(self) -> None:
        """Reassign the windows, if any, without changes."""
        if self.noise is not None:
            first = torch.arange(1, dtype=torch.int32, device=self.noise.device)
            self.noise = self.noise.index_put((first,), self.noise.index_select(0, first))


def window_places(rows: Tensor, positions: Tensor) -> Tensor:
    """Return the indices of positions in the windows."""
    return rows * WINDOW + (positions & (WINDOW - 1))
