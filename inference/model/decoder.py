"""The Llama-family transformer: a static-shape forward pass for prefill, decoding and verification.

It reads the KV caches and returns the new keys and values, which its caller writes. Modules and
parameters are named as in Hugging Face checkpoints, so that loading needs no table of names. Masks,
not lengths, say what a node sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.attention import MASKED, Sight, attend_in_float32
from inference.model.cache import KeysValues, read_rows
from inference.model.checkpoints.config import ModelConfig
from inference.model.fused_layers import FUSED
from inference.model.layers import WHOLE, Layer, Layers, Past
from inference.model.rotary import rotary_tables


class Hidden(NamedTuple):
    """The result of a forward pass: states of the picked nodes, and all nodes' keys and values for
    the cache.
    """

    states: Tensor  # [B, P, hidden]
    new: KeysValues  # each layer's [B, T, width]
    features: Tensor | None = None  # [B, T, kept layers * hidden], where layers are kept


def layers_on(device: torch.device) -> Layers:
    """Factories for the layers of a decoder that runs uncompiled."""
    return Layers(attend=attend_in_float32) if device.type == "cpu" else FUSED


class Stack(nn.Module):
    """Embeddings, layers and the final norm: the part that Hugging Face calls `model`."""

    layers: Iterable[nn.Module]  # a module, which may fetch the weights of the next one

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.embed_tokens = layers.embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layers) for _ in range(config.layers))
        self.norm = layers.norm(config.hidden_size, config.norm_eps)


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
        masks = context_mask.to(torch.bool), tree_mask.to(torch.bool)
        sight = self.look(Sight(cos, sin, *masks), self.config.heads // self.config.kv_heads)
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
