"""Configurations of causal models for the transformers backend, read without torch. What would be
computed incorrectly is rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import UnsupportedModel, require
from inference.files.json_file import Json, shown
from inference.model.checkpoints.config import read_config_json, read_stop_ids

_FOR_SHORTER = ("longrope", "dynamic")
"""Types of rotary scaling whose frequencies change beyond the original length."""

_STATES = frozenset(("linear_attention", "conv", "hybrid", "mlp", "moe"))
"""Types of layers in models with running states: with a state, a state and keys, or neither."""

_WITH_KEYS = frozenset(("full_attention", "hybrid"))
"""Types of layers with keys in such models."""

WINDOW_FIELDS = ("sliding_window", "attention_chunk_size")
"""Config fields with the window and the chunk of a Reach."""


class Reach(NamedTuple):
    """The reach of a layer's attention; unlimited unless a field is set."""

    window: int | None = None  # positions, including the node's own
    chunk: int | None = None  # positions per chunk; earlier chunks are not visible


@dataclass(frozen=True)
class LibraryConfig:
    """Facts about a causal model that are needed before loading it.

    reaches: by layer type; the key is "" if all layers have the same type
    keeps_states: whether layers keep a running state
    max_positions: the checkpoint's maximum
    limited_by: origin of max_positions: "config.json field NAME"
    """

    model_type: str
    vocab_size: int
    max_positions: int
    limited_by: str
    reaches: Mapping[str, Reach]
    keeps_states: bool
    stop_ids: frozenset[int]


def read_library_config(directory: Path) -> LibraryConfig:
    """Read the config of a Hugging Face directory by the transformers library.

    Raises UnsupportedModel with the unsupported property, and MissingExtra.
    """
    raw = read_config_json(directory)
    require("torch", f"{directory}: --backend transformers", "transformers")
    text = _text_config(directory / "config.json", raw)
    _refuse_what_is_not_causal(raw, text)
    max_positions, limited_by = _max_positions(raw, text)
    return LibraryConfig(
        raw.field("model_type").text(),
        _positive(raw, text, "vocab_size"),
        max_positions,
        f"config.json field {limited_by}",
        _reaches(raw, text),
        bool(_STATES & _kinds(text)),
        read_stop_ids(directory),
    )


def _text_config(path: Path, raw: Json) -> Any:
    """Return the library's configuration of the model, or of its text model if it has several."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
        __version__,
    )

    kind, quantized = raw.field("model_type"), raw.field("quantization_config")
    if kind.text() not in CONFIG_MAPPING:
        why = "" if raw.field("auto_map").absent else ", and code of a checkpoint is never run"
        raise UnsupportedModel(
            f"{kind.where} is {shown(kind.value)}: transformers {__version__} does not know it{why}"
        )
    if not quantized.absent:
        method = shown(quantized.field("quant_method").value)
        raise UnsupportedModel(
            f"{quantized.where} is of {method}: quantized checkpoints need packages and kernels of "
            "their own; take the checkpoint in bfloat16, or a GGUF file"
        )
    try:
        config = CONFIG_MAPPING[kind.text()].from_json_file(path)
    except (AttributeError, KeyError, StrictDataclassError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModel(f"{raw.where}: transformers cannot read it: {reason}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            f"{kind.where} is {shown(kind.value)}: it is no causal language model"
        )
    text, causal = config.get_text_config(), MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(causal, "_is_stateful", False) and not _WITH_KEYS.intersection(_kinds(text)):
        raise UnsupportedModel(
            f"{kind.where} is {shown(kind.value)}: it keeps a running state, and no keys beside it"
        )
    return text


def _kinds(text: Any) -> frozenset[str]:
    """Return the types of layers, empty if the configuration does not list them."""
    return frozenset(getattr(text, "layer_types", None) or ())


def _positive(raw: Json, text: Any, name: str) -> int:
    value = getattr(text, name, None)
    return Json(value, f"{raw.where} field {name}", UnsupportedModel).integer(1)


def _max_positions(raw: Json, text: Any) -> tuple[int, str]:
    """Return the maximum positions and the field that sets them.

    Some scalings change frequencies for longer sequences, so earlier keys would become wrong.
    """
    name, original = "max_position_embeddings", "original_max_position_embeddings"
    length = _positive(raw, text, name)
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = [rope for rope in ropes.values() if isinstance(rope, Mapping)] or [ropes]
    for rope in kinds:
        if rope.get("rope_type") in _FOR_SHORTER:
            shorter = rope.get(original) or getattr(text, original, None) or length
            if shorter < length:
                return int(shorter), original
    return length, name


def _reaches(raw: Json, text: Any) -> dict[str, Reach]:
    """Return the reach of each type of layer. Raises UnsupportedModel for unknown types."""
    window, chunk = (getattr(text, name, None) for name in WINDOW_FIELDS)
    kinds = _kinds(text)
    if not kinds:
        return {"": Reach(window, chunk)}
    reach = {
        "full_attention": Reach(),
        "sliding_attention": Reach(window=window),
        "chunked_attention": Reach(chunk=chunk),
    }
    if _STATES & kinds:  # the library derives the masks of these layers from the other layers'
        reach = {kind: Reach() for kind in _STATES | _WITH_KEYS}
    extra = sorted(kinds - set(reach))
    if extra:
        raise UnsupportedModel(
            f"{raw.where} field layer_types names {shown(extra)}; supported are {', '.join(reach)}"
        )
    return {"": Reach()} if _STATES & kinds else {kind: reach[kind] for kind in sorted(kinds)}


def _refuse_what_is_not_causal(raw: Json, text: Any) -> None:
    for name, needed, also in (
        ("is_encoder_decoder", False, None),
        ("use_bidirectional_attention", False, "vision"),  # within images, which are not supported
        ("is_causal", True, None),
    ):
        value = getattr(text, name, needed)
        if value not in (needed, also, None):
            raise UnsupportedModel(
                f"{raw.where} field {name} is {shown(value)}: a causal model has {needed}"
            )
