"""Attention over the cache and new nodes, for graphs and for uncompiled CPU code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED = -1e30
"""Attention score of a key that a node does not see; finite, since accelerators fail on inf."""

WIDE = 64
"""Number of nodes from which torch's own attention is faster on a CPU, as it stores no scores."""


class Sight(NamedTuple):
    """Masks and rotary positions of new nodes, for all layers of a forward pass."""

    cos: Tensor  # [B, T, 1, head dim / 2]
    sin: Tensor  # [B, T, 1, head dim / 2]
    context: Tensor  # [B, M, S] bool, with M = 1 or T: slots of the cache
    tree: Tensor  # [B, T, E + T] bool: E earlier nodes, then the new ones


Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Any], Tensor]
"""An implementation of attend(). Its last argument is the result of Layers.look for a Sight."""


def attend(
    q: Tensor, past_keys: Tensor, past_values: Tensor, k: Tensor, v: Tensor, sight: Sight
) -> Tensor:
    """Return the output of attention for the queries q.

    Products use the cache's precision and accumulate in float32. The softmax is in float32.

    q: [B, T, H, D]
    past_keys, past_values: [B, S, width] from the cache
    k, v: [B, E + T, width] of nodes that are not in the cache
    result: [B, T, H * D] float32
    """
    batch, nodes, heads, size = q.shape
    shared = k.shape[-1] // size
    group = heads // shared * nodes  # query heads of a key-value head, and their nodes, as rows
    narrow = k.dtype if k.dtype.itemsize == 2 else torch.float32
    scaled = (q.float() * size**-0.5).to(narrow)
    folded = scaled.transpose(1, 2).reshape(batch * shared, group, size)

    def by_head(tensor: Tensor) -> Tensor:  # [B, n, width] -> [B * KV, n, D]
        parted = tensor.to(narrow).view(batch, tensor.shape[1], shared, size).transpose(1, 2)
        return parted.reshape(batch * shared, tensor.shape[1], size)

    def scores(keys: Tensor, mask: Tensor) -> Tensor:  # [B, KV, H / KV, T, n]
        raw = torch.bmm(folded, by_head(keys).transpose(1, 2))
        raw = raw.view(batch, shared, heads // shared, nodes, -1)
        return torch.where(mask[:, None, None], raw, max(MASKED, torch.finfo(narrow).min))

    past, new = scores(past_keys, sight.context), scores(k, sight.tree)
    top = torch.maximum(past.amax(-1, keepdim=True), new.amax(-1, keepdim=True)).float()
    past, new = torch.exp(past - top), torch.exp(new - top)
    total = past.sum(-1, keepdim=True) + new.sum(-1, keepdim=True)
    rows = (batch * shared, group, -1)

    def weighed(weights: Tensor, values: Tensor) -> Tensor:  # [B * KV, H / KV * T, D]
        return torch.bmm(weights.to(narrow).view(rows), by_head(values)).float()

    mixed = weighed(past, past_values) + weighed(new, v)
    mixed = (mixed / total.view(rows)).view(batch, heads, nodes, size)
    return mixed.transpose(1, 2).reshape(batch, nodes, heads * size)


def attend_in_float32(
    q: Tensor, past_keys: Tensor, past_values: Tensor, k: Tensor, v: Tensor, sight: Sight
) -> Tensor:
    """Compute attend() entirely in float32, which is as fast on a CPU. Products in bfloat16 would
    round the scores before the softmax to steps of up to a half.
    """
    batch, nodes, heads, size = q.shape
    q, past_keys, past_values, k, v = (x.float() for x in (q, past_keys, past_values, k, v))
    if nodes < WIDE:
        return attend(q, past_keys, past_values, k, v, sight)
    keys, values = (
        torch.cat(pair, 1).view(batch, -1, k.shape[-1] // size, size).transpose(1, 2)
        for pair in ((past_keys, k), (past_values, v))
    )
    mask = torch.cat((sight.context.expand(-1, nodes, -1), sight.tree), -1)[:, None]
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True
    )
    return mixed.transpose(1, 2).reshape(batch, nodes, heads * size)
