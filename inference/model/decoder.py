"""The Llama-family transformer: a static-shape forward for prefill, decoding and verification.

It reads the KV caches and returns the new keys and values, which its caller writes. Modules and
parameters are named as in Hugging Face checkpoints, so that loading needs no table of names. Masks,
not lengths, say what a node sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.attention import MASKED, Attend, Sight, attend, attend_in_float32
from inference.model.cache import KeysValues, read_rows
from inference.model.config import ModelConfig
from inference.model.rotary import rotary_tables, rotate
from inference.model.vocabulary import WHOLE_VOCABULARY, VocabularyShare


class Hidden(NamedTuple):
    """The result of a forward pass: states of the picked nodes, and all nodes' keys and values for
    the cache.
    """

    states: Tensor  # [B, P, hidden]
    new: KeysValues  # each layer's [B, T, width]
    features: Tensor | None = None  # [B, T, kept layers * hidden], where layers are kept


class Past(NamedTuple):
    """One layer's keys and values that were computed before."""

    keys: Tensor  # [B, S, width] of the cache
    values: Tensor  # [B, S, width]
    near_keys: Tensor | None  # [B, E, width] of earlier nodes that are not in the cache
    near_values: Tensor | None  # [B, E, width]


class RMSNorm(nn.Module):
    """x / rms(x) * weight.

    The quotient is computed in float32 and rounded before the weight is applied, as in training.
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
    """The output layer, cut at the tokenizer's last id. The weights are cut, not the result."""

    def forward(self, states: Tensor, vocabulary: int) -> Tensor:  # type: ignore[override]
        return F.linear(states, self.weight[:vocabulary])


class Layers(NamedTuple):
    """Makers of the layers that tensor parallelism splits among ranks. The defaults are for one
    rank.
    """

    # (inputs, outputs, bias): each rank has some of the outputs
    column: Callable[[int, int, bool], nn.Linear] = nn.Linear
    # (inputs, outputs, bias): each rank has some of the inputs, and the whole result
    row: Callable[[int, int, bool], nn.Linear] = nn.Linear
    # (ids, size): each rank has the whole result
    embedding: Callable[[int, int], nn.Embedding] = nn.Embedding
    # (inputs, outputs, bias): called with states and the vocabulary; each rank has its share's ids
    head: Callable[[int, int, bool], nn.Linear] = Head
    attend: Attend | None = None  # None: attend(), of all rows at once
    share: VocabularyShare = WHOLE_VOCABULARY
    # (outputs): its float32 weight [V, 1] numbers this rank's ids; None where a rank has all
    ids: Callable[[int], nn.Linear] | None = None


WHOLE = Layers()


class Attention(nn.Module):
    """Grouped-query attention over the cache and the new nodes.

    One softmax covers both; it is summed in float32 and rounded once.
    """

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.head_dim, self.attend = config.head_dim, layers.attend or attend
        query, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = layers.column(config.hidden_size, query, config.qkv_bias)
        self.k_proj = layers.column(config.hidden_size, shared, config.qkv_bias)
        self.v_proj = layers.column(config.hidden_size, shared, config.qkv_bias)
        self.o_proj = layers.row(query, config.hidden_size, config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x: Tensor, past: Past, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Return the attention's output [B, T, hidden], and the new keys and values [B, T, width].

        x: [B, T, hidden]
        """
        batch, nodes, _ = x.shape
        q = self.q_proj(x).view(batch, nodes, -1, self.head_dim)  # as many heads as this rank has
        k, v = self.k_proj(x).view(batch, nodes, -1, self.head_dim), self.v_proj(x)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, sight.cos, sight.sin), rotate(k, sight.cos, sight.sin).flatten(2)
        near_keys, near_values = (
            part if earlier is None else torch.cat((earlier, part), 1)
            for part, earlier in ((k, past.near_keys), (v, past.near_values))
        )
        mixed = self.attend(q, past.keys, past.values, near_keys, near_values, sight)
        return self.o_proj(mixed.to(x.dtype)), k, v


def layers_on(device: torch.device) -> Layers:
    """Makers of the layers of a decoder that computes on a device as it is, uncompiled."""
    return Layers(attend=attend_in_float32) if device.type == "cpu" else WHOLE


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
    """Attention and MLP, each with a norm before it and a residual around it."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layers)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config, layers)

    def forward(self, x: Tensor, past: Past, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output [B, T, hidden], and its new keys and values [B, T, width]."""
        mixed, keys, values = self.self_attn(self.input_layernorm(x), past, sight)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class Stack(nn.Module):
    """Embeddings, layers and the final norm: the part that Hugging Face calls `model`."""

    layers: Iterable[nn.Module]  # a module, which may fetch the weights of the next one

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.embed_tokens = layers.embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layers) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Decoder(nn.Module):
    """A causal language model. Its head ends at the tokenizer's last id, so no padding id can be
    chosen.

    positions: how many positions the rotary table covers
    vocabulary: ids of the tokenizer, no more than the checkpoint's
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: ModelConfig, positions: int, vocabulary: int, layers: Layers = WHOLE
    ) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.model = Stack(config, layers)
        self.lm_head: nn.Module | None = None  # None: the embeddings are the head
        if not config.tied:
            self.lm_head = layers.head(config.hidden_size, config.vocab_size, False)
        self.share = layers.share
        self.ids = None if layers.ids is None else layers.ids(config.vocab_size)
        cos, sin = rotary_tables(config, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        tokens: Tensor,
        rows: Tensor,
        positions: Tensor,
        context_mask: Tensor,
        tree_mask: Tensor,
        pick: Tensor | None,
        cache: KeysValues,
        earlier: KeysValues | None = None,
        kept: Sequence[int] = (),
    ) -> Hidden:
        """Run a forward pass over new nodes. The caches are only read.

        tokens, positions: [B, T] int32
        rows: [B] int32, the cache row of each
        context_mask: [B, M, S] int32 0/1 over the first S slots, with M = 1 or T
        tree_mask: [B, T, T] int32 0/1; with `earlier` [B, T, E + T], its nodes first
        pick: [B, P] int32, the nodes whose states are wanted; None for all in their order
        cache: each layer's [cache rows, slots, width]
        earlier: each layer's [B, E, width], of nodes that are not in the cache yet
        kept: layers whose inputs are features; config.layers stands for the last's output
        """
        x = self.model.embed_tokens(tokens)
        cos, sin = (
            F.embedding(positions, table)[:, :, None].to(x.dtype) for table in (self.cos, self.sin)
        )
        sight = Sight(cos, sin, context_mask.to(torch.bool), tree_mask.to(torch.bool))
        new_keys, new_values = [], []
        features: list[Tensor] = []  # dynamo traces no list[Tensor]()
        for index, layer in enumerate(self.model.layers):
            if index in kept:
                features.append(x)
            past = Past(
                read_rows(cache.keys[index], rows, context_mask.shape[-1]),
                read_rows(cache.values[index], rows, context_mask.shape[-1]),
                None if earlier is None else earlier.keys[index],
                None if earlier is None else earlier.values[index],
            )
            x, k, v = layer(x, past, sight)
            new_keys.append(k)
            new_values.append(v)
        if self.config.layers in kept:
            features.append(x)
        if pick is not None:
            x = torch.gather(x, 1, pick[:, :, None].expand(-1, -1, x.shape[-1]))
        return Hidden(
            self.model.norm(x),
            KeysValues(tuple(new_keys), tuple(new_values)),
            torch.cat(features, -1) if features else None,
        )

    def logits(self, states: Tensor) -> Tensor:  # [B, P, hidden] -> [B, P, V] float32
        """Apply the head, for the tokenizer's ids only: those of this rank's share. The result is
        cast to float32, the weights are not.
        """
        if self.lm_head is None:
            return F.linear(states, self.model.embed_tokens.weight[: self.vocabulary]).float()
        logits: Tensor = self.lm_head(states, self.vocabulary).float()
        if self.ids is None or self.config.vocab_size == self.vocabulary:
            return logits
        return torch.where(self.ids.weight[:, 0] < self.vocabulary, logits, MASKED)

    def head_weight(self) -> Tensor:  # [vocab size, hidden]
        """Return the head's matrix as it was loaded: the embeddings', where the two are tied."""
        tied = self.config.tied
        return self.get_parameter("model.embed_tokens.weight" if tied else "lm_head.weight")

    def token_ids(self) -> Tensor:  # [V] int32
        """Return the ids of this rank's share, in the order of logits()."""
        if self.ids is None:
            return torch.arange(self.vocabulary, dtype=torch.int32, device=self.cos.device)
        return self.ids.weight[:, 0].to(torch.int32)
