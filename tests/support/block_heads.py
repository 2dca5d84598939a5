"""DFlash heads: checkpoints as published, and what a head computes, by whole matrices in numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from inference.model.checkpoints.config import ModelConfig

Array = NDArray[np.float64]
HEADS, SHARED, SIZE, INNER = 4, 2, 16, 48
IDS = (0,)
"""Layers of a target of two whose outputs these heads read."""

BLOCK, MASK = 8, 3


def raw_config(target: ModelConfig, **overrides: Any) -> dict[str, Any]:
    """config.json of a head for this target, as its authors write it."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": SHARED,
        "head_dim": SIZE,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(IDS)},
    } | overrides


def tensors_of(target: ModelConfig, *, bias: bool = False, own: int = 0) -> dict[str, Tensor]:
    """Random tensors of a head of two layers. own: tokens of an output layer of its own"""
    hidden, generator = target.hidden_size, torch.Generator().manual_seed(5)
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(IDS) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in ("layers.0.", "layers.1."):
        for name, out, of in (
            ("q", HEADS * SIZE, hidden),
            ("k", SHARED * SIZE, hidden),
            ("v", SHARED * SIZE, hidden),
            ("o", hidden, HEADS * SIZE),
        ):
            sizes[f"{layer}self_attn.{name}_proj.weight"] = (out, of)
            if bias:
                sizes[f"{layer}self_attn.{name}_proj.bias"] = (out,)
        for name in ("gate", "up"):
            sizes[f"{layer}mlp.{name}_proj.weight"] = (INNER, hidden)
        sizes[f"{layer}mlp.down_proj.weight"] = (hidden, INNER)
        for name in ("q", "k"):
            sizes[f"{layer}self_attn.{name}_norm.weight"] = (SIZE,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            sizes[f"{layer}{name}.weight"] = (hidden,)
    if own:
        sizes["lm_head.weight"] = (own, hidden)
    tensors = {
        name: ("norm" in name) + 0.3 * torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }
    if own:
        tensors["d2t"] = torch.arange(own)  # token i of the head is 2 i of the target
    return tensors


def write_head(directory: Path, raw: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(tensors, directory / "model.safetensors")
    return directory


def block_states(
    tensors: dict[str, Tensor], embeddings: Tensor, features: Array, anchor: int, *, causal: bool
) -> Array:  # [BLOCK, hidden]
    """The normed states of the block behind tokens with these features [p, F], by the definition
    in the paper: whole matrices, float64, no cache.
    """
    own = {name: part.double().numpy() for name, part in tensors.items()}
    known = len(features)
    context = _norm(features @ own["fc.weight"].T, own["hidden_norm.weight"])
    x = embeddings.double().numpy()[[anchor, *[MASK] * (BLOCK - 1)]]
    for layer in ("layers.0.", "layers.1."):
        part = {
            name.removeprefix(layer): one for name, one in own.items() if name.startswith(layer)
        }

        def project(which: str, states: Array, part: dict[str, Array] = part) -> Array:
            bias = part.get(f"self_attn.{which}_proj.bias", 0.0)
            out = states @ part[f"self_attn.{which}_proj.weight"].T + bias
            return out.reshape(len(states), out.shape[-1] // SIZE, SIZE)

        normed = _norm(x, part["input_layernorm.weight"])
        q = _norm(project("q", normed), part["self_attn.q_norm.weight"])
        keys = np.concatenate([project("k", context), project("k", normed)])
        keys = _norm(keys, part["self_attn.k_norm.weight"])
        values = np.concatenate([project("v", context), project("v", normed)])
        q, keys = _rotated(q, known), _rotated(keys, 0)
        group = HEADS // SHARED
        keys, values = keys.repeat(group, 1), values.repeat(group, 1)
        scores = np.einsum("qhd,khd->hqk", q, keys) / np.sqrt(SIZE)
        if causal:
            later = np.arange(known + BLOCK)[None] > known + np.arange(BLOCK)[:, None]
            scores[:, later] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(BLOCK, -1)
        bias = part.get("self_attn.o_proj.bias", 0.0)
        x = x + mixed @ part["self_attn.o_proj.weight"].T + bias
        inner = _norm(x, part["post_attention_layernorm.weight"])
        gate = inner @ part["mlp.gate_proj.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (inner @ part["mlp.up_proj.weight"].T)
        x = x + inner @ part["mlp.down_proj.weight"].T
    return _norm(x, own["norm.weight"])


def _norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight)


def _rotated(x: Array, first: int) -> Array:  # [n, heads, SIZE]
    """Rotary positions of nodes at first, first + 1, ..."""
    rates = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    angles = (first + np.arange(len(x)))[:, None, None] * rates
    pairs = (x[..., : SIZE // 2] + 1j * x[..., SIZE // 2 :]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], -1)
