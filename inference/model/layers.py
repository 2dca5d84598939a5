"""The layers of the Llama-family transformer, with factories for variants by ranks and device.

FUSED is for CUDA: few kernels, since launching a small kernel takes longer than running it. It has
not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.checkpoints.config import ModelConfig
from inference.model.choice.vocabulary import WHOLE_VOCABULARY, VocabularyShare


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [positions, head dim / 2] float32 of all rotary angles."""
    with torch.device("cpu"):  # also if parameters are created on the meta device
        angles = (
            torch.arange(positions, dtype=torch.float32)[:, None]
            * torch.from_numpy(config.frequencies())[None]
        )
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, T, heads, D]; cos and sin are [B, T, 1, D / 2]."""
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


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


class Past(NamedTuple):
    """Earlier keys and values of a layer."""

    keys: Tensor  # [B, S, width] of the cache
    values: Tensor  # [B, S, width]
    near_keys: Tensor | None  # [B, E, width] of earlier nodes that are not in the cache
    near_values: Tensor | None  # [B, E, width]


class RMSNorm(nn.Module):
    """x / rms(x) * weight. As in training, the quotient is computed in float32 and rounded before
    the multiplication.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (
            wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        ).to(x.dtype)


class Head(nn.Linear):
    """The output layer. Its weights are sliced at the tokenizer's last id."""

    def forward(self, states: Tensor, vocabulary: int) -> Tensor:  # type: ignore[override]
        return F.linear(states, self.weight[:vocabulary])


class Attention(nn.Module):
    """Grouped-query attention over the cache and the new nodes, with one softmax in float32."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.head_dim, self.attend, self.rotate = config.head_dim, layers.attend, layers.rotate
        query, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = layers.column(config.hidden_size, query, config.qkv_bias)
        self.k_proj = layers.column(config.hidden_size, shared, config.qkv_bias)
        self.v_proj = layers.column(config.hidden_size, shared, config.qkv_bias)
        self.o_proj = layers.row(query, config.hidden_size, config.output_bias)
        if config.qk_norm:
            self.q_norm = layers.norm(config.head_dim, config.norm_eps)
            self.k_norm = layers.norm(config.head_dim, config.norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x: Tensor, past: Past, sight: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output [B, T, hidden], and the new keys and values [B, T, width].

        x: [B, T, hidden]
        """
        batch, nodes, _ = x.shape
        q = self.q_proj(x).view(batch, nodes, -1, self.head_dim)  # heads of this rank
        k, v = self.k_proj(x).view(batch, nodes, -1, self.head_dim), self.v_proj(x)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotate(q, k, sight)
        k = k.flatten(2)
        near_keys, near_values = (
            new if earlier is None else torch.cat((earlier, new), 1)
            for new, earlier in ((k, past.near_keys), (v, past.near_values))
        )
        mixed = self.attend(q, past.keys, past.values, near_keys, near_values, sight)
        return self.o_proj(mixed.to(x.dtype)), k, v


def rotate_each(q: Tensor, k: Tensor, sight: Sight) -> tuple[Tensor, Tensor]:
    """Apply rotary positions to queries and keys, each [B, T, heads, D]."""
    return rotate(q, sight.cos, sight.sin), rotate(k, sight.cos, sight.sin)


def plain_sight(sight: Sight, group: int) -> Sight:
    """Return the sight unchanged."""
    return sight


class Layers(NamedTuple):
    """Factories for layers that depend on tensor parallelism or on the device. The defaults are for
    a single rank and any device.
    """

    # (inputs, outputs, bias): each rank computes some of the outputs
    column: Callable[[int, int, bool], nn.Linear] = nn.Linear
    # (inputs, outputs, bias): each rank has some of the inputs and gets the complete result
    row: Callable[[int, int, bool], nn.Linear] = nn.Linear
    # (ids, size): each rank gets the complete result
    embedding: Callable[[int, int], nn.Embedding] = nn.Embedding
    # (inputs, outputs, bias): called with states and vocabulary; each rank computes its ids
    head: Callable[[int, int, bool], nn.Linear] = Head
    attend: Attend = attend
    share: VocabularyShare = WHOLE_VOCABULARY
    # (outputs): the float32 weight [V, 1] contains this rank's ids; None if a rank has all
    ids: Callable[[int], nn.Linear] | None = None
    norm: type[RMSNorm] = RMSNorm
    # (queries, keys, sight), each [B, T, heads, D]
    rotate: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]] = rotate_each
    # (sight, query heads per key-value head): converts a Sight for `rotate` and `attend`
    look: Callable[[Sight, int], Any] = plain_sight


WHOLE = Layers()


class MLP(nn.Module):
    """The SwiGLU feed-forward layer."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.gate_proj = layers.column(
            config.hidden_size, config.intermediate_size, config.mlp_bias
        )
        self.up_proj = layers.column(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.down_proj = layers.row(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class Layer(nn.Module):
    """Attention and MLP, each with a pre-norm and a residual connection."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.input_layernorm = layers.norm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layers)
        self.post_attention_layernorm = layers.norm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config, layers)

    def forward(self, x: Tensor, past: Past, sight: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output [B, T, hidden], and its new keys and values [B, T, width]."""
        mixed, keys, values = self.self_attn(self.input_layernorm(x), past, sight)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


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
