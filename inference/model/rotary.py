"""Rotary positions: the tables of their angles, and how they turn queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.model.checkpoints.config import ModelConfig


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [positions, head dim / 2] float32 of all rotary angles."""
    with torch.device("cpu"):  # also when parameters are laid out on the meta device
        angles = (
            torch.arange(positions, dtype=torch.float32)[:, None]
            * torch.from_numpy(config.frequencies())[None]
        )
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, T, heads, D]; cos and sin are [B, T, 1, D / 2]."""
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
