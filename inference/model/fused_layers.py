"""Layers for CUDA with few kernels, since launching a small kernel takes longer than running it.

Not yet run on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.model.attention import MASKED, Sight
from inference.model.layers import Layers, RMSNorm

_ALIGNED = 8
"""Rows of a mask are padded to a multiple of this, since each layer would copy unaligned rows."""


class FusedRMSNorm(RMSNorm):
    """An RMSNorm that rounds only the result."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class FusedSight(NamedTuple):
    """Rotary tables and attention mask of new nodes, in the format of torch's kernels."""

    cos: Tensor  # [B, T, 1, D], both halves the same
    sin: Tensor  # [B, T, 1, D], the first half negative
    mask: Tensor  # [B, 1, H / KV * T, S + E + T] added to the scores: by query head, then by node


def look(sight: Sight, group: int) -> FusedSight:
    """Convert a Sight to a FusedSight. group: query heads per key-value head"""
    cos, sin, context, tree = sight
    visible = torch.cat((context.expand(-1, tree.shape[1], -1), tree), -1)  # [B, T, n]
    lowest = max(MASKED, torch.finfo(cos.dtype).min)
    mask = torch.zeros_like(visible, dtype=cos.dtype).masked_fill(~visible, lowest)
    padded = F.pad(mask, (0, -visible.shape[-1] % _ALIGNED)).repeat(1, group, 1)
    return FusedSight(
        torch.cat((cos, cos), -1),
        torch.cat((-sin, sin), -1),
        padded[:, None, :, : visible.shape[-1]],
    )


def rotate_together(q: Tensor, k: Tensor, sight: FusedSight) -> tuple[Tensor, Tensor]:
    """Apply rotary positions to queries and keys, each [B, T, heads, D]."""
    both = torch.cat((q, k), 2)
    swapped = both.roll(both.shape[-1] // 2, -1)
    turned = torch.addcmul(both * sight.cos, swapped, sight.sin)
    return turned[:, :, : q.shape[2]], turned[:, :, q.shape[2] :]


def attend_fused(
    q: Tensor, past_keys: Tensor, past_values: Tensor, k: Tensor, v: Tensor, sight: FusedSight
) -> Tensor:
    """Compute attend() by torch's own kernel, with scores in float32.

    The query heads of a key-value head are treated as rows, to avoid repeating keys and values.
    """
    nodes, size = q.shape[1], q.shape[-1]
    keys, values = (
        torch.unflatten(torch.cat(pair, 1), 2, (-1, size)).transpose(1, 2)
        for pair in ((past_keys, k), (past_values, v))
    )  # [B, KV, n, D]
    folded = torch.unflatten(q, 2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=sight.mask)
    return torch.unflatten(mixed, 2, (-1, nodes)).permute(0, 3, 1, 2, 4).flatten(2)


FUSED = Layers(attend=attend_fused, norm=FusedRMSNorm, rotate=rotate_together, look=look)
