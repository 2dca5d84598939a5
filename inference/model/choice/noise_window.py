"""Noise as state: a graph keeps the noise of the next positions, and a small separate graph
computes it while the target is idle.

A row of the caches has a window of WINDOW positions; position p is at place p mod WINDOW. Values
are those of noise() for the same seed, position and ids, in float32: with 16 bits, choices would
sometimes differ. At 128,256 ids on two ranks a row takes 8 MB per rank.
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
"""Positions of a row's window. A power of two."""

FILLED = 16
"""Places that one call fills, of any rows."""


class NoisePlace(NamedTuple):
    """The noise of one position, for a row of the caches."""

    row: int
    position: int  # of the token that is chosen with it
    seed: int


def empty_window(rows: int, ids: int, device: torch.device | str = "cpu") -> Tensor:
    """Return windows without noise [rows * WINDOW, ids of a rank] float32."""
    return torch.zeros(rows * WINDOW, ids, device=device)


def fill_inputs(places: Sequence[NoisePlace]) -> dict[str, Tensor]:
    """Return inputs, by parameter name, that make a stateful graph fill 1 to FILLED places."""
    every = [*places, *[places[0]] * (FILLED - len(places))]
    params = [SamplingParams(1.0, seed=place.seed) for place in every]
    return {
        "rows": torch.tensor([place.row for place in every], dtype=torch.int32),
        "after": torch.tensor([[place.position] for place in every], dtype=torch.int32),
        "seed": Sampling.of(params, torch.device("cpu")).seed,
    }


class KeepsNoise(nn.Module):
    """A graph with windows of noise beside its caches. A greedy one has none."""

    noise: Tensor | None

    def hold_noise(self, window: Tensor | None) -> None:
        """Register the windows of all rows."""
        self.register_buffer("noise", window, persistent=False)

    def noise_at(self, rows: Tensor, positions: Tensor) -> Tensor:  # [B], [B, P] -> [B, P, V]
        """Return the noise of these positions, which were filled before."""
        assert self.noise is not None, "a sampled call of a graph without noise windows"
        return F.embedding(window_places(rows[:, None], positions), self.noise)

    def fill_noise(
        self, rows: Tensor, positions: Tensor, seed: Tensor, ids: Tensor, by: Arithmetic
    ) -> None:
        """Reassign the windows with the noise of these places.

        rows: [N] int32
        positions: [N, 1] int32
        seed: [N, 2] int32
        ids: [V] int32, of this rank
        """
        assert self.noise is not None, "a graph without noise windows cannot fill them"
        made = by.noise(seed[:, None], positions, ids)
        self.noise = self.noise.index_put((window_places(rows, positions[:, 0]),), made)

    def touch_noise(self) -> None:
        """Reassign the windows, if there are any, as they are."""
        if self.noise is not None:
            first = torch.arange(1, dtype=torch.int32, device=self.noise.device)
            self.noise = self.noise.index_put((first,), self.noise.index_select(0, first))


def window_places(rows: Tensor, positions: Tensor) -> Tensor:
    """Return where the noise of these positions lies in the windows."""
    return rows * WINDOW + (positions & (WINDOW - 1))
