"""The Llama-family transformer: a static-shape forward pass for prefill, decoding and verification.

It returns the new keys and values for the caller to write. Modules and parameters have the names of
Hugging Face checkpoints. Masks, not lengths, define what a node sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.cache import KeysValues, read_rows
from inference.model.checkpoints.config import ModelConfig
from inference.model.layers import (
    FUSED,
    MASKED,
    WHOLE,
    Layer,
    Layers,
    Past,
    Sight,
    attend_in_float32,
    rotary_tables,
)


class Hidden(NamedTuple):
    """The result of a forward pass: states of the picked nodes, and new keys and values of all."""

    states: Tensor  # [B, P, hidden]
    new: KeysValues  # [B, T, width] for each layer
    features: Tensor | None = None  # [B, T, feature layers * hidden], if there are feature layers


def layers_on(device: torch.device) -> Layers:
    """Return the layer factories for a decoder that runs uncompiled on a device."""
    return Layers(attend=attend_in_float32) if device.type == "cpu" else FUSED


class Stack(nn.Module):
    """Embeddings, layers and the final norm, called `model` in Hugging Face checkpoints."""

    layers: Iterable[nn.Module]  # a module; iterating over offloaded layers loads their weights

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.embed_tokens = layers.embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layers) for _ in range(config.layers))
        self.norm = layers.norm(config.hidden_size, config.norm_eps)


class Decoder(nn.Module):
    """A causal language model. Its head ends at the tokenizer's last id, so padding ids are never
    chosen.

    positions: number of positions in the rotary table
    vocabulary: number of token ids of the tokenizer, at most the checkpoint's
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
        self.share, self.look = layers.share, layers.look
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
        feature_layers: Sequence[int] = (),
    ) -> Hidden:
        """Run a forward pass over new nodes. Does not write the caches.

        tokens, positions: [B, T] int32
        rows: [B] int32, cache rows
        context_mask: [B, M, S] int32 0/1 over the first S slots, with M = 1 or T
        tree_mask: [B, T, T] int32 0/1; with `earlier` [B, T, E + T], earlier nodes first
        pick: [B, P] int32, nodes whose states are returned; None for all in order
        cache: [cache rows, slots, width] for each layer
        earlier: [B, E, width] for each layer, of nodes that are not in the cache yet
        feature_layers: layers whose inputs are returned; config.layers for the last layer's output
        """
        x = self.model.embed_tokens(tokens)
        cos, sin = (
            F.embedding(positions, table)[:, :, None].to(x.dtype) for table in (self.cos, self.sin)
        )
        masks = context_mask.to(torch.bool), tree_mask.to(torch.bool)
        sight = self.look(Sight(cos, sin, *masks), self.config.heads // self.config.kv_heads)
        new_keys, new_values = [], []
        features: list[Tensor] = []  # dynamo traces no list[Tensor]()
        for index, layer in enumerate(self.model.layers):
            if index in feature_layers:
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
        if self.config.layers in feature_layers:
            features.append(x)
        if pick is not None:
            x = torch.gather(x, 1, pick[:, :, None].expand(-1, -1, x.shape[-1]))
        return Hidden(
            self.model.norm(x),
            KeysValues(tuple(new_keys), tuple(new_values)),
            torch.cat(features, -1) if features else None,
        )

    def logits(self, states: Tensor) -> Tensor:  # [B, P, hidden] -> [B, P, V] float32
        """Apply the head for the tokenizer's ids on this rank, and cast the result to float32."""
        if self.lm_head is None:
            return F.linear(states, self.model.embed_tokens.weight[: self.vocabulary]).float()
        logits: Tensor = self.lm_head(states, self.vocabulary).float()
        if self.ids is None or self.config.vocab_size == self.vocabulary:
            return logits
        return torch.where(self.ids.weight[:, 0] < self.vocabulary, logits, MASKED)

    def head_weight(self) -> Tensor:  # [vocab size, hidden]
        """Return the head's weights as loaded; if they are tied, those of the embeddings."""
        tied = self.config.tied
        return self.get_parameter("model.embed_tokens.weight" if tied else "lm_head.weight")

    def token_ids(self) -> Tensor:  # [V] int32
        """Return the token ids of this rank, in the order of logits()."""
        if self.ids is None:
            return torch.arange(self.vocabulary, dtype=torch.int32, device=self.cos.device)
        return self.ids.weight[:, 0].to(torch.int32)
