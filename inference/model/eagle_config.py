"""The configuration of an EAGLE-3 head: a draft of few layers that reads features of its target.

Heads are published in three forms, all of which are read:

- as EAGLE's own code and SpecForge write it: fields of a Llama at the top, mostly of one layer, and
  `draft_vocab_size`
- the same with `eagle_config.eagle_aux_hidden_state_layer_ids`, which numbers layers by their
  output: layer 0 stands for the output of the first layer
- as `speculators` writes it: the Llama's fields in `transformer_layer_config`, and
  `eagle_aux_hidden_state_layer_ids` at the top, which numbers layers by their input

Without ids, the features are the inputs of layers 2, n / 2 and n - 3 of a target of n layers
(Li et al. 2025, "EAGLE-3", and the code published with it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.errors import InvalidRequest, UnsupportedModel
from inference.json_file import Json, read_json
from inference.model.config import ModelConfig, parse_config

_LAYER, _IDS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
_OTHER_HEADS = ("norm_before_fc", "norm_output", "fc_norm")
EAGLE3 = "eagle3"
"""The name of the layers that EAGLE-3 reads."""

LEAST_LAYERS = 7
MOST_HEAD_LAYERS = 16

_NO_WINDOW = {"sliding_window": None, "use_sliding_window": False}


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and form of a head's computation.

    layer: how many layers it has, and the sizes of each; the vocabulary is the target's
    draft_vocabulary: tokens that it can name
    kept: layers of the target whose inputs are its features, ascending
    features: numbers that the target gives it for a token
    norms_residual: its residual is the normalised feature, not the feature
    """

    layer: ModelConfig
    draft_vocabulary: int
    kept: tuple[int, ...]
    features: int
    norms_residual: bool


def named_layers(named: str, layers: int) -> tuple[int, ...]:
    """Return the layers that --features names, ascending, of a target of so many: numbers separated
    by commas, or EAGLE3. The number of layers stands for the last layer's output.

    Raises InvalidRequest for layers that the target does not have.
    """
    if named == EAGLE3:
        if layers < LEAST_LAYERS:
            raise InvalidRequest(
                f"--features {EAGLE3} needs a target of {LEAST_LAYERS} layers or more, this one "
                f"has {layers}: name layers"
            )
        return usual_layers(layers)
    chosen = tuple(sorted({int(part) for part in named.split(",")}))
    if chosen[-1] > layers:
        raise InvalidRequest(f"--features {named}: the target has layers up to {layers}")
    return chosen


def read_head_config(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read the config.json of a head that was made for this target.

    Raises UnsupportedModel for what is no EAGLE-3 head, is computed otherwise, or does not fit.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"{directory} is not a model directory: it has no config.json")
    raw = read_json(path, UnsupportedModel)
    layer = raw if raw.field(_LAYER).absent else raw.field(_LAYER)
    named = raw.field("draft_vocab_size")
    if named.absent:
        raise UnsupportedModel(
            f"{path} has no draft_vocab_size: an EAGLE-3 head is needed, not a whole draft model"
        )
    for name in _OTHER_HEADS:
        if raw.field(name).value:
            raise UnsupportedModel(f"{path} field {name} is set: such heads are not supported")
    sizes = parse_config(layer.dictionary() | {"model_type": "llama"} | _NO_WINDOW)
    if sizes.layers > MOST_HEAD_LAYERS:
        raise UnsupportedModel(
            f"{path}: a head has 1 to {MOST_HEAD_LAYERS} layers, this one {sizes.layers}"
        )
    if sizes.vocab_size != target.vocab_size:
        raise UnsupportedModel(
            f"{path}: the head is for a vocabulary of {sizes.vocab_size} tokens, the target has "
            f"{target.vocab_size}"
        )
    width = raw.field("target_hidden_size")
    asked = sizes.hidden_size if width.absent else width.integer(1)
    if asked != target.hidden_size:
        raise UnsupportedModel(
            f"{path}: the head is for a target of hidden size {asked}, this one has "
            f"{target.hidden_size}"
        )
    kept = _kept(raw, target.layers)
    residual = raw.field("norm_before_residual")
    return HeadConfig(
        layer=sizes,
        draft_vocabulary=named.integer(1, sizes.vocab_size),
        kept=kept,
        features=len(kept) * target.hidden_size,
        norms_residual=not residual.absent and residual.flag(),
    )


def _kept(raw: Json, layers: int) -> tuple[int, ...]:
    """Return the layers of a target of so many layers whose inputs are the features."""
    ids, outputs = raw.field(_IDS), 0
    if ids.absent and not raw.field("eagle_config").absent:
        ids, outputs = raw.field("eagle_config").field(_IDS), 1
    if not ids.absent:
        given = ids.each(lambda each: outputs + each.integer(0, layers - outputs))
        return given if list(given) == sorted(set(given)) else ids.refuse("ascending layers")
    if layers < LEAST_LAYERS:
        raise UnsupportedModel(
            f"{raw.where}: {_IDS} is missing, and what stands for it are 3 layers of a target of "
            f"{LEAST_LAYERS} or more; this one has {layers}"
        )
    return usual_layers(layers)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs EAGLE-3 reads of a target of LEAST_LAYERS or more."""
    return 2, layers // 2, layers - 3
