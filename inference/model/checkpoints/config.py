"""The configuration of a Llama-family checkpoint, read from its config.json. What the Decoder does
not compute correctly is rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest, UnknownArchitecture, UnsupportedModel
from inference.files.json_file import LARGEST, Json, read_json, shown
from inference.model.checkpoints.weight_files import has_own_head

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MISTRAL_WINDOW = 4096  # transformers' default when config.json has no sliding_window
_DEFAULT_LENGTH = 2048


@dataclass(frozen=True)
class RopeScaling:
    """Scaling of rotary frequencies: Llama 3's, or uniform if `low` and `high` are None."""

    factor: float
    low: float | None = None
    high: float | None = None
    original: int | None = None  # maximum positions before scaling


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and options of the transformer."""

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
    max_positions: int  # the checkpoint's maximum, or its sliding window if that is smaller
    limited_by: str  # origin of max_positions: "config.json field NAME"
    stop_ids: frozenset[int]

    def frequencies(self) -> NDArray[np.float32]:  # [head_dim / 2]
        """Return rotary frequencies in radians per position, computed in float64."""
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


def allowed_length(value: int | None, name: str, limit: int, limited_by: str) -> int:
    """Return the sequence length to use, by default up to 2048. Raises InvalidRequest if the model
    does not support `value`.
    """
    if value is None:
        return min(_DEFAULT_LENGTH, limit)
    if not 2 <= value <= limit:
        raise InvalidRequest(f"--sequence_length {value}: {name} takes 2 to {limit} ({limited_by})")
    return value


def read_config(directory: Path) -> ModelConfig:
    """Read the config of a Hugging Face directory. Raises UnsupportedModel with the field that is
    not supported.
    """
    return _parse(read_config_json(directory), read_stop_ids(directory))


def read_config_json(directory: Path) -> Json:
    """Read a directory's config.json. Raises UnsupportedModel if there is none.

    Like the transformers library, this overrides tie_word_embeddings if the weight files have a
    head that differs from the embeddings.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"{directory} is not a model directory: it has no config.json")
    raw, name = read_json(path, UnsupportedModel), "tie_word_embeddings"
    if raw.field(name).value is True and has_own_head(directory):
        return replace(raw, value=raw.dictionary() | {name: False})
    return raw


def read_raw_config(directory: Path) -> dict[str, Any]:
    """Return the content of a directory's config.json; see read_config_json()."""
    return read_config_json(directory).dictionary()


_ELSEWHERE = (
    "Graphs are made of these alone. Outrider serves others by --backend transformers on cpu or "
    "cuda; on Neuron AWS's own engine, vLLM-Neuron, has examples for gpt-oss beside Llama and Qwen3"
)


def read_config_for_graphs(directory: Path) -> ModelConfig:
    """Read the config of a model to compile. Raises UnsupportedModel with alternatives."""
    try:
        return read_config(directory)
    except UnknownArchitecture as error:
        raise UnsupportedModel(f"{error}. {_ELSEWHERE}") from error


def parse_config(raw: Mapping[str, Any], stop_ids: frozenset[int] = frozenset()) -> ModelConfig:
    """Convert the content of a config.json. Raises UnsupportedModel with the field that is not
    supported.
    """
    return _parse(Json(dict(raw), "config.json", UnsupportedModel), stop_ids)


def _parse(raw: Json, stop_ids: frozenset[int]) -> ModelConfig:
    family = _family(raw)
    _refuse_what_is_not_computed(raw)
    heads, hidden = raw.field("num_attention_heads").integer(1), raw.field("hidden_size").integer(1)
    shared = _positive(raw.field("num_key_value_heads"), heads)
    head_dim = _positive(raw.field("head_dim"), 128 if family == "qwen3" else hidden // heads)
    if heads % shared:
        raw.field("num_key_value_heads").refuse(f"a divisor of num_attention_heads ({heads})")
    if head_dim % 2 or not head_dim:
        what = f"{raw.where}: heads have {head_dim} dimensions (head_dim, else hidden_size"
        raise UnsupportedModel(f"{what} over num_attention_heads): an even number is needed")
    attention_bias = _flag(raw.field("attention_bias"))
    theta, scaling = _rope(raw)
    max_positions, limited_by = _max_positions(raw, family)
    return ModelConfig(
        model_type=family,
        vocab_size=raw.field("vocab_size").integer(1),
        hidden_size=hidden,
        intermediate_size=raw.field("intermediate_size").integer(1),
        layers=raw.field("num_hidden_layers").integer(1),
        heads=heads,
        kv_heads=shared,
        head_dim=head_dim,
        norm_eps=_number(raw.field("rms_norm_eps"), 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=True if family == "qwen2" else attention_bias,
        output_bias=False if family == "qwen2" else attention_bias,
        mlp_bias=_flag(raw.field("mlp_bias")),
        qk_norm=family == "qwen3",
        tied=_flag(raw.field("tie_word_embeddings")),
        max_positions=max_positions,
        limited_by=f"config.json field {limited_by}",
        stop_ids=stop_ids,
    )


def _family(raw: Json) -> str:
    family = raw.field("model_type")
    if family.value not in FAMILIES:
        supported = f"{', '.join(FAMILIES)} (Llama, TinyLlama, SmolLM2, Mistral, Qwen2/2.5, Qwen3)"
        raise UnknownArchitecture(
            f"{family.where} is {shown(family.value)}: supported are {supported}"
        )
    return family.text()


def _refuse_what_is_not_computed(raw: Json) -> None:
    expected = {
        "hidden_act": ("silu",),
        "partial_rotary_factor": (None, 1, 1.0),
        "quantization_config": (None,),
    }
    for name, allowed in expected.items():
        field = raw.field(name)
        if not (field.absent and name not in raw.dictionary()) and field.value not in allowed:
            raise UnknownArchitecture(
                f"{field.where} is {shown(field.value)}: supported is {allowed[0]!r}"
            )
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        field = raw.field(name)
        if field.value:
            raise UnknownArchitecture(
                f"{field.where} is {shown(field.value)}: mixtures of experts are not supported"
            )
    kinds = raw.field("layer_types")
    names = () if kinds.absent else kinds.map(Json.text)
    unsupported = sorted({*names} - {"full_attention", "sliding_attention"})
    if unsupported:
        raise UnknownArchitecture(
            f"{kinds.where} names {shown(unsupported)}: supported is full attention"
        )


def _positive(field: Json, default: int) -> int:
    return default if field.absent else field.integer(1)


def _flag(field: Json) -> bool:
    return not field.absent and field.flag()


def _number(field: Json, default: float | None = None) -> float:
    """Return the field as a number above 0."""
    if field.absent and default is not None:
        return default
    number = field.number()
    return number if number > 0 else field.refuse("a number above 0")


def _rope(raw: Json) -> tuple[float, RopeScaling | None]:
    """Return theta and scaling from rope_parameters, or the older rope_theta and rope_scaling."""
    rope = raw.field("rope_parameters" if raw.field("rope_parameters").value else "rope_scaling")
    theta = _number(raw.field("rope_theta"), 10000.0)
    if not rope.value:
        return theta, None
    factor = rope.field("partial_rotary_factor")
    if not factor.absent and factor.value != 1:
        raise UnknownArchitecture(f"{factor.where} is {shown(factor.value)}: supported is 1")
    if any(isinstance(value, Mapping) for value in rope.dictionary().values()):
        kinds = shown(list(rope.dictionary()))
        raise UnknownArchitecture(
            f"{rope.where} differs from layer to layer ({kinds}): supported is one"
        )
    theta = _number(rope.field("rope_theta"), theta)
    kind = rope.field("type") if rope.field("rope_type").absent else rope.field("rope_type")
    name = "default" if kind.absent else kind.text()
    if name == "default":
        return theta, None
    if name == "linear":
        return theta, RopeScaling(_number(rope.field("factor")))
    if name == "llama3":
        original = rope.field("original_max_position_embeddings").integer(1)
        low, high = _number(rope.field("low_freq_factor")), _number(rope.field("high_freq_factor"))
        if not low < high:
            rope.field("high_freq_factor").refuse(f"a number above low_freq_factor ({low:g})")
        return theta, RopeScaling(_number(rope.field("factor")), low, high, original)
    raise UnknownArchitecture(
        f"{rope.where}.rope_type is {shown(name)}: supported are default, linear, llama3"
    )


def _max_positions(raw: Json, family: str) -> tuple[int, str]:
    """Return the maximum positions and the field that sets them. A sliding window is a maximum,
    too, since the Decoder computes full attention.
    """
    length = raw.field("max_position_embeddings").integer(1)
    field = raw.field("sliding_window")
    window = 0 if field.absent else field.integer()
    if family == "mistral" and "sliding_window" not in raw.dictionary():
        window = _MISTRAL_WINDOW
    elif family != "mistral" and not _flag(raw.field("use_sliding_window")):
        window = 0
    if 0 < window < length:
        return window, "sliding_window"
    return length, "max_position_embeddings"


def read_stop_ids(directory: Path) -> frozenset[int]:
    """Return the union of the stop token ids in generation_config.json and config.json.

    Fine-tuned models often have one of these files from their base model. Callers add
    Tokenizer.end_ids for the same reason.
    """
    stops = set[int]()
    for path in (directory / "generation_config.json", directory / "config.json"):
        if path.is_file():
            ids = read_json(path, UnsupportedModel).field("eos_token_id")
            stops |= {*ids.map(_id)} if isinstance(ids.value, list) else {*_ids(ids)}
    return frozenset(stops)


def _ids(field: Json) -> list[int]:
    return [] if field.absent else [_id(field)]


def _id(field: Json) -> int:
    return field.integer(-LARGEST)


_LAYER = re.compile(r"model\.layers\.([0-9]{1,9})\.")


def check_sizes(shapes: Mapping[str, Sequence[int]], config: ModelConfig, directory: Path) -> None:
    """Raise UnsupportedModel unless the tensors have the layers and widths of the config, so that a
    config cannot request more memory than its files do.
    """
    layers = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    if len(layers) < config.layers:
        claim = f"config.json field num_hidden_layers is {config.layers}"
        raise UnsupportedModel(f"{directory}: {claim}, and the tensors are of {len(layers)} layers")
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
    """Raise UnsupportedModel unless a tensor's shape is the size from the config."""
    if tuple(shape) != tuple(size):
        says = f"has shape {tuple(shape)}, config.json says {tuple(size)}"
        raise UnsupportedModel(f"{directory}: tensor {name} {says}")
