"""Layers for CUDA, of few kernels: a small kernel takes less time than its start.

Not yet run on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.model.attention import MASKED, Sight
from inference.model.layers import Attention, Layers, Past, RMSNorm

_ALIGNED = 8
"""Numbers that rows of a mask are a multiple of: else each layer copies it."""


class FusedRMSNorm(RMSNorm):
    """An RMSNorm that is rounded once."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class FusedSight(NamedTuple):
    """What the new nodes see, as the kernels take it."""

    cos: Tensor  # [B, T, 1, D], both halves the same
    sin: Tensor  # [B, T, 1, D], the first half negative
    mask: Tensor  # [B, 1, H / KV * T, S + E + T] added to the scores: by query head, then by node


class FusedAttention(Attention):
    """Attention by torch's own kernel, with one joint mask.

    The query heads of a key-value head are rows of it, so its keys and values are not repeated. The
    scores are in float32.
    """

    @staticmethod
    def look(sight: Sight, group: int) -> FusedSight:
        cos, sin, context, tree = sight
        seen = torch.cat((context.expand(-1, tree.shape[1], -1), tree), -1)  # [B, T, n]
        lowest = max(MASKED, torch.finfo(cos.dtype).min)
        mask = torch.zeros_like(seen, dtype=cos.dtype).masked_fill(~seen, lowest)
        padded = F.pad(mask, (0, -seen.shape[-1] % _ALIGNED)).repeat(1, group, 1)
        return FusedSight(
            torch.cat((cos, cos), -1),
            torch.cat((-sin, sin), -1),
            padded[:, None, :, : seen.shape[-1]],
        )

    def rotate(self, q: Tensor, k: Tensor, sight: FusedSight) -> tuple[Tensor, Tensor]:
        both = torch.cat((q, k), 2)
        swapped = both.roll(self.head_dim // 2, -1)
        turned = torch.addcmul(both * sight.cos, swapped, sight.sin)
        return turned[:, :, : q.shape[2]], turned[:, :, q.shape[2] :]

    def mix(
        self, q: Tensor, past: Past, near_keys: Tensor, near_values: Tensor, sight: FusedSight
    ) -> Tensor:
        nodes, shared = q.shape[1], near_keys.shape[-1] // self.head_dim
        keys, values = (
            torch.unflatten(torch.cat(parts, 1), 2, (shared, self.head_dim)).transpose(1, 2)
            for parts in ((past.keys, near_keys), (past.values, near_values))
        )  # [B, KV, n, D]
        folded = torch.unflatten(q, 2, (shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=sight.mask)
        return torch.unflatten(mixed, 2, (-1, nodes)).permute(0, 3, 1, 2, 4).flatten(2)


FUSED = Layers(norm=FusedRMSNorm, attention=FusedAttention)
