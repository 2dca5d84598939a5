"""EAGLE-3 heads: checkpoints as published, and what a head computes, without caches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from inference.backends.eagle_model import FeatureModel
from inference.backends.sequence import ModelSequence
from inference.model.checkpoints.config import ModelConfig
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.equality import full_logits

DRAFT_VOCABULARY = 40
KEPT = (0, 1, 2)
"""Of a target of two layers: its embeddings, what is between its layers, and what leaves them."""

HEADS, SHARED, SIZE = 4, 2, 8
"""Attention heads of a head, those of keys and values, and the numbers of each."""


def raw_config(target: ModelConfig, **overrides: Any) -> dict[str, Any]:
    """config.json of a head for this target, as EAGLE's own code writes it."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": SHARED,
        "head_dim": SIZE,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "eagle_aux_hidden_state_layer_ids": list(KEPT),
    } | overrides


def tensors_of(
    target: ModelConfig,
    seed: int = 1,
    named: int = DRAFT_VOCABULARY,
    layers: int = 3,
    depth: int = 1,
) -> dict[str, Any]:
    """Random tensors of a head of this depth, which reads so many layers of the target."""
    generator, hidden = torch.Generator().manual_seed(seed), target.hidden_size
    sizes = {
        "fc.weight": (hidden, layers * hidden),
        **_layer_sizes("midlayer.", hidden, 2 * hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (named, hidden),
    }
    for index in range(1, depth):
        sizes |= _layer_sizes(f"layers.{index}.", hidden, hidden)
    tensors = {
        name: ("norm" in name) + 0.3 * torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }
    ids = torch.arange(named) * 7 % target.vocab_size
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[ids] = True
    return {**tensors, "d2t": ids - torch.arange(named), "t2d": known}


def _layer_sizes(prefix: str, hidden: int, read: int) -> dict[str, tuple[int, ...]]:
    """Sizes of a layer's tensors by name. read: what its attention reads of a node"""
    inner, wide, narrow = 48, HEADS * SIZE, SHARED * SIZE
    sizes = {
        "self_attn.q_proj": (wide, read),
        "self_attn.k_proj": (narrow, read),
        "self_attn.v_proj": (narrow, read),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{prefix}{name}.weight": size for name, size in sizes.items()}


def write_head(
    directory: Path, raw: dict[str, Any], tensors: dict[str, Tensor], spelt: str = "midlayer."
) -> Path:
    """Write a head's checkpoint. spelt: how the names of its layer begin."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(
        {name.replace("midlayer.", spelt): tensor for name, tensor in tensors.items()},
        directory / "model.safetensors",
    )
    return directory


def kept_of_a_text(target: FeatureModel, layers: Sequence[int], row: int) -> Tensor:
    """What a target keeps of a text on a row: of a prompt of 21 tokens, which needs several calls,
    and of a root with two nodes of a tree that were accepted.

    Returns [24, layers * hidden].
    """
    target.keep_features(layers)
    sequence = ModelSequence(target, row, SamplingParams(0.8, seed=3))
    sequence.extend(list(range(21)))
    tree = TokenTree(
        np.array([3, 7, 8, 9, 5, 6], dtype=np.int32), np.array([-1, 0, 0, 1, 1, 2], dtype=np.int32)
    )
    sequence.choose(tree)
    sequence.commit(tree, (1, 4))
    return target.features(row, sequence.slots.at(np.arange(24, dtype=np.int32)))


def states_of(target: Decoder, tokens: Sequence[int]) -> Tensor:  # [n, 3 * hidden]
    """What enters the target's two layers for tokens [n], and what leaves the last."""
    seen: list[Tensor] = []
    layers = list(target.model.layers)
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for layer in layers
    ]
    hooks.append(layers[-1].register_forward_hook(lambda _, inputs, out: seen.append(out[0])))
    full_logits(target, tokens)
    for hook in hooks:
        hook.remove()
    return torch.cat([state[0] for state in seen], -1)


def drafted(
    tensors: dict[str, Tensor],
    embeddings: Tensor,
    states: Tensor,
    tokens: Sequence[int],
    known: int,
    norms_residual: bool = False,
) -> Tensor:  # [draft vocabulary]
    """Log-probabilities of what follows tokens [n], by EAGLE-3's own definition, token by token and
    without a cache. The target has computed the first `known` of them.

    states: [known, 3 * hidden]
    """
    features = list(states[:known] @ tensors["fc.weight"].T)
    while True:
        count = min(len(features), len(tokens) - 1)
        embedded = embeddings[list(tokens[1 : count + 1])]
        out = _layers(tensors, embedded, torch.stack(features[:count]), norms_residual)
        if count == len(tokens) - 1:
            return _named(tensors, out[-1])
        features.append(out[-1])


def _named(tensors: dict[str, Tensor], states: Tensor) -> Tensor:  # [..., draft vocabulary]
    named = _norm(states, tensors["norm.weight"]) @ tensors["lm_head.weight"].T
    return torch.log_softmax(named, -1)


def _layers(
    tensors: dict[str, Tensor], embedded: Tensor, features: Tensor, norms_residual: bool
) -> Tensor:  # [n, hidden]
    """All layers over a text: the first reads a token's embedding beside the feature before it."""
    first = _of(tensors, "midlayer.")
    normed = _norm(features, first["hidden_norm.weight"])
    pairs = torch.cat((_norm(embedded, first["input_layernorm.weight"]), normed), -1)
    x = _layer(first, pairs, normed if norms_residual else features)
    index = 1
    while layer := _of(tensors, f"layers.{index}."):
        x, index = _layer(layer, _norm(x, layer["input_layernorm.weight"]), x), index + 1
    return x


def _of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)
    }


def _layer(weights: dict[str, Tensor], read: Tensor, residual: Tensor) -> Tensor:  # [n, hidden]
    """A Llama layer, by what its attention reads and what both its parts are added to."""
    n = len(read)
    q, k, v = (
        (read @ weights[f"self_attn.{part}_proj.weight"].T).view(n, -1, SIZE).transpose(0, 1)
        for part in "qkv"
    )
    mixed = F.scaled_dot_product_attention(
        _turned(q), _turned(k), v, is_causal=True, enable_gqa=True
    )
    mixed = mixed.transpose(0, 1).reshape(n, -1) @ weights["self_attn.o_proj.weight"].T
    x = residual + mixed
    inner = _norm(x, weights["post_attention_layernorm.weight"])
    gate = F.silu(inner @ weights["mlp.gate_proj.weight"].T)
    inner = gate * (inner @ weights["mlp.up_proj.weight"].T)
    return x + inner @ weights["mlp.down_proj.weight"].T


def _turned(x: Tensor) -> Tensor:  # [heads, n, SIZE]
    """Rotary positions, counted from 0 at the second token of a text."""
    rates = 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
    turn = torch.polar(torch.ones(1), torch.arange(x.shape[1])[:, None] * rates)
    pairs = torch.complex(x[..., : SIZE // 2], x[..., SIZE // 2 :]) * turn
    return torch.cat((pairs.real, pairs.imag), -1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)
