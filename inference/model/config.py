"""What a Llama-family checkpoint is: read from its config.json, refused where we would compute it wrongly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import UnsupportedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MISTRAL_WINDOW = 4096  # transformers' default when config.json has no sliding_window


@dataclass(frozen=True)
class RopeScaling:
    """Rotary frequencies stretched as Llama 3 does it, or evenly (`low` and `high` None: linear)."""

    factor: float
    low: float | None = None
    high: float | None = None
    original: int | None = None  # positions before stretching


@dataclass(frozen=True)
class ModelConfig:
    """Everything the transformer needs to know; see `read_config` for where it comes from."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    max_positions: int  # what the checkpoint was made for, its sliding window included
    limited_by: str  # the config.json field that sets max_positions
    stop_ids: frozenset[int]

    def frequencies(self) -> NDArray[np.float32]:  # [head_dim / 2]
        """Rotary frequencies in radians per position, computed in float64 and rounded once."""
        plain = 1.0 / self.rope_theta ** (
            np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        )
        scaling = self.rope_scaling
        if scaling is None:
            return np.asarray(plain, dtype=np.float32)
        if scaling.low is None or scaling.high is None or scaling.original is None:
            return np.asarray(plain / scaling.factor, dtype=np.float32)
        turns = scaling.original * plain / (2 * math.pi)  # full turns within the original context
        blend = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0, 1)
        return np.asarray((1 - blend) * plain / scaling.factor + blend * plain, dtype=np.float32)


def read_config(directory: Path) -> ModelConfig:
    """The config of a Hugging Face directory; raises UnsupportedModel naming the field that rules it out."""
    path = directory / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"{directory} is not a model directory: it has no config.json")
    raw = read_json(path)
    return parse_config(raw, _stop_ids(directory, raw))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises UnsupportedModel when there is none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return raw


def parse_config(raw: Mapping[str, Any], stop_ids: frozenset[int] = frozenset()) -> ModelConfig:
    """The config from the parsed config.json."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"model_type is {family!r}: supported are {', '.join(FAMILIES)} (Llama, TinyLlama, SmolLM2, Mistral, Qwen2/2.5, Qwen3)"
        )
    _refuse_what_is_not_computed(raw)
    heads = _int(raw, "num_attention_heads")
    attention_bias = bool(raw.get("attention_bias", False))
    head_dim = raw.get("head_dim") or (
        128 if family == "qwen3" else _int(raw, "hidden_size") // heads
    )
    theta, scaling = _rope(raw)
    max_positions, limited_by = _max_positions(raw, family)
    return ModelConfig(
        model_type=family,
        vocab_size=_int(raw, "vocab_size"),
        hidden_size=_int(raw, "hidden_size"),
        intermediate_size=_int(raw, "intermediate_size"),
        layers=_int(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(head_dim),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=True if family == "qwen2" else attention_bias,
        output_bias=False if family == "qwen2" else attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", False)),
        max_positions=max_positions,
        limited_by=limited_by,
        stop_ids=stop_ids,
    )


def _refuse_what_is_not_computed(raw: Mapping[str, Any]) -> None:
    expected = {
        "hidden_act": ("silu",),
        "partial_rotary_factor": (None, 1, 1.0),
        "quantization_config": (None,),
    }
    for field, allowed in expected.items():
        value = raw.get(field, allowed[0])
        if value not in allowed:
            raise UnsupportedModel(
                f"config.json field {field} is {value!r}: supported is {allowed[0]!r}"
            )
    for field in ("num_experts", "num_local_experts", "n_routed_experts"):
        if raw.get(field):
            raise UnsupportedModel(
                f"config.json field {field} is {raw[field]}: mixtures of experts are not supported"
            )
    kinds = set(raw.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise UnsupportedModel(
            f"config.json field layer_types names {sorted(kinds)}: supported is full attention"
        )


def _int(raw: Mapping[str, Any], field: str) -> int:
    value = raw.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModel(
            f"config.json field {field} is {value!r}: a positive integer is needed"
        )
    return value


def _rope(raw: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling, from transformers 5's rope_parameters or the older rope_theta and rope_scaling."""
    field = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    rope = dict(raw.get(field) or {})
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if rope.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel(
            f"config.json field {field}.partial_rotary_factor is {rope['partial_rotary_factor']}: supported is 1"
        )
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedModel(
            f"config.json field {field} differs from layer to layer ({', '.join(rope)}): supported is one for all"
        )

    def number(name: str) -> float:
        if not isinstance(rope.get(name), (int, float)):
            raise UnsupportedModel(
                f"config.json field {field}.{name} is {rope.get(name)!r}: a number is needed"
            )
        return float(rope[name])

    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(number("factor"))
    if kind == "llama3":
        original = int(number("original_max_position_embeddings"))
        return theta, RopeScaling(
            number("factor"), number("low_freq_factor"), number("high_freq_factor"), original
        )
    raise UnsupportedModel(
        f"config.json field {field}.rope_type is {kind!r}: supported are default, linear, llama3"
    )


def _max_positions(raw: Mapping[str, Any], family: str) -> tuple[int, str]:
    """Positions computed as the checkpoint means them: beyond a sliding window full attention would be wrong."""
    length = _int(raw, "max_position_embeddings")
    window = raw.get("sliding_window", _MISTRAL_WINDOW if family == "mistral" else None)
    if family != "mistral" and not raw.get("use_sliding_window", False):
        window = None
    return (
        (int(window), "sliding_window")
        if window and window < length
        else (length, "max_position_embeddings")
    )


def _stop_ids(directory: Path, raw: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end a text: generation_config.json's eos_token_id, else config.json's."""
    path = directory / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    ids = generation.get("eos_token_id", raw.get("eos_token_id"))
    return frozenset([ids] if isinstance(ids, int) else ids or [])
