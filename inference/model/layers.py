"""The layers of the Llama-family transformer, and factories for variants by ranks and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.attention import Attend, Sight, attend
from inference.model.checkpoints.config import ModelConfig
from inference.model.choice.vocabulary import WHOLE_VOCABULARY, VocabularyShare
from inference.model.rotary import rotate


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
