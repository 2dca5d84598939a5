"""Checks that tensors have the sizes that a config states, before anything is built from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference.errors import UnsupportedModel
from inference.model.config import ModelConfig

_LAYER = re.compile(r"model\.layers\.([0-9]{1,9})\.")


def check_sizes(shapes: Mapping[str, Sequence[int]], config: ModelConfig, directory: Path) -> None:
    """Raise UnsupportedModel unless the tensors have the config's depth and widths.

    So a config cannot ask for more than the files hold. The error names `directory`, where the
    tensors lie.
    """
    layers = {int(found[1]) for name in shapes if (found := _LAYER.match(name))}
    if len(layers) < config.layers:
        asked = f"config.json field num_hidden_layers is {config.layers}"
        raise UnsupportedModel(f"{directory}: {asked}, and the tensors are of {len(layers)} layers")
    hidden, first = config.hidden_size, "model.layers.0."
    expected = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        f"{first}mlp.gate_proj.weight": (config.intermediate_size, hidden),
        f"{first}self_attn.q_proj.weight": (config.heads * config.head_dim, hidden),
        f"{first}self_attn.k_proj.weight": (config.kv_heads * config.head_dim, hidden),
    }
    for name, size in expected.items():
        if name not in shapes:
            raise UnsupportedModel(f"{directory}: tensor {name} is missing")
        check_shape(directory, name, shapes[name], size)


def check_shape(directory: Path, name: str, shape: Sequence[int], size: Sequence[int]) -> None:
    """Raise UnsupportedModel unless a tensor has this size."""
    if tuple(shape) != tuple(size):
        says = f"has shape {tuple(shape)}, config.json says {tuple(size)}"
        raise UnsupportedModel(f"{directory}: tensor {name} {says}")
