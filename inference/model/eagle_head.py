"""An EAGLE-3 head (Li et al. 2025): one or a few layers that draft from the target's features.

The input of a head's node is a token and the feature of the preceding token. If the target has
computed the preceding token, the feature is `fc` of the target's states. Otherwise it is the head's
own output for that token, before the last norm. Three published formats are supported:

- EAGLE's own code and SpecForge: fields of a Llama config (usually one layer), and
  `draft_vocab_size`
- the same with `eagle_config.eagle_aux_hidden_state_layer_ids`, which counts layers by their
  output: 0 is the output of the first layer
- `speculators`: Llama fields in `transformer_layer_config`, and top-level
  `eagle_aux_hidden_state_layer_ids`, which counts layers by their input

Without ids, the features are the inputs of layers 2, n / 2 and n - 3 of n target layers
(Li et al. 2025, "EAGLE-3", and the code published with it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from inference.errors import InvalidRequest, UnsupportedModel
from inference.files.json_file import Json
from inference.model.cache import KeysValues, read_rows
from inference.model.checkpoints.config import (
    ModelConfig,
    check_shape,
    parse_config,
    read_config_json,
)
from inference.model.checkpoints.weight_files import tensor_shapes, weight_files
from inference.model.decoder import Decoder, Hidden
from inference.model.layers import (
    MASKED,
    MLP,
    WHOLE,
    Attention,
    Layer,
    Past,
    RMSNorm,
    Sight,
    rotary_tables,
)

_LAYER, _LAYERS_READ = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
_OTHER_HEADS = ("norm_before_fc", "norm_output", "fc_norm")
EAGLE3 = "eagle3"
"""The value of --features for the layers that EAGLE-3 reads by default."""

MIN_LAYERS = 7
MAX_HEAD_LAYERS = 16

_NO_WINDOW = {"sliding_window": None, "use_sliding_window": False}


@dataclass(frozen=True)
class HeadConfig:
    """The configuration of a head.

    layer: number of layers and their sizes, with the target's vocabulary
    draft_vocabulary: number of tokens that the head can propose
    feature_layers: layers of the target whose inputs are the features, ascending
    features: size of the target's features of a token
    norms_residual: whether the residual is the normalised feature instead of the feature
    """

    layer: ModelConfig
    draft_vocabulary: int
    feature_layers: tuple[int, ...]
    features: int
    norms_residual: bool


def named_layers(selection: str, layers: int) -> tuple[int, ...]:
    """Return the layers that --features selects, ascending.

    selection: EAGLE3, or numbers separated by commas, in which `layers` is the last layer's output

    Raises InvalidRequest for layers that the target does not have.
    """
    if selection == EAGLE3:
        if layers < MIN_LAYERS:
            raise InvalidRequest(
                f"--features {EAGLE3} needs a target of {MIN_LAYERS} layers or more, this one "
                f"has {layers}: name layers"
            )
        return usual_layers(layers)
    chosen = tuple(sorted({int(number) for number in selection.split(",")}))
    if chosen[-1] > layers:
        raise InvalidRequest(f"--features {selection}: this target takes 0 to {layers}")
    return chosen


def read_head_config(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read a head's config.json. Raises UnsupportedModel unless it is an EAGLE-3 head that is
    supported and fits the target.
    """
    path, raw = directory / "config.json", read_config_json(directory)
    layer = raw if raw.field(_LAYER).absent else raw.field(_LAYER)
    draft_vocabulary = raw.field("draft_vocab_size")
    if draft_vocabulary.absent:
        raise UnsupportedModel(
            f"{path} has no draft_vocab_size: an EAGLE-3 head is needed, not a whole draft model"
        )
    for name in _OTHER_HEADS:
        if raw.field(name).value:
            raise UnsupportedModel(f"{path} field {name} is set: such heads are not supported")
    sizes = parse_config(layer.dictionary() | {"model_type": "llama"} | _NO_WINDOW)
    if sizes.layers > MAX_HEAD_LAYERS:
        raise UnsupportedModel(
            f"{path}: a head has 1 to {MAX_HEAD_LAYERS} layers, this one {sizes.layers}"
        )
    if sizes.vocab_size != target.vocab_size:
        raise UnsupportedModel(
            f"{path}: the head is for a vocabulary of {sizes.vocab_size} tokens, but the target "
            f"has {target.vocab_size}"
        )
    width = raw.field("target_hidden_size")
    hidden = sizes.hidden_size if width.absent else width.integer(1)
    if hidden != target.hidden_size:
        raise UnsupportedModel(
            f"{path}: the head is for a target of hidden size {hidden}, but this one has "
            f"{target.hidden_size}"
        )
    layers = _feature_layers(raw, target.layers)
    residual = raw.field("norm_before_residual")
    return HeadConfig(
        layer=sizes,
        draft_vocabulary=draft_vocabulary.integer(1, sizes.vocab_size),
        feature_layers=layers,
        features=len(layers) * target.hidden_size,
        norms_residual=not residual.absent and residual.flag(),
    )


def _feature_layers(raw: Json, layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs are the features, for a target with `layers` layers."""
    ids, outputs = raw.field(_LAYERS_READ), 0
    if ids.absent and not raw.field("eagle_config").absent:
        ids, outputs = raw.field("eagle_config").field(_LAYERS_READ), 1
    if not ids.absent:
        numbers = ids.map(lambda number: outputs + number.integer(0, layers - outputs))
        return numbers if list(numbers) == sorted(set(numbers)) else ids.refuse("ascending layers")
    if layers < MIN_LAYERS:
        raise UnsupportedModel(
            f"{raw.where}: {_LAYERS_READ} is missing, and what stands for it are 3 layers of a "
            f"target of {MIN_LAYERS} or more; this one has {layers}"
        )
    return usual_layers(layers)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the default layers of EAGLE-3, for a target with at least MIN_LAYERS layers."""
    return 2, layers // 2, layers - 3


_BESIDE = WHOLE._replace(column=lambda size, out, bias: nn.Linear(2 * size, out, bias))
"""Factories with twice the input size: queries, keys and values have an embedding and a feature as
input.
"""

_IDS, _UNUSED = "d2t", ("t2d",)
_EMBEDDING = "embed_tokens.weight"


class HeadLayer(nn.Module):
    """A head's first layer: attention over concatenated embeddings and features, and MLP."""

    def __init__(self, config: ModelConfig, norms_residual: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, _BESIDE)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config, WHOLE)
        self._norms_residual = norms_residual

    def forward(
        self, embedded: Tensor, features: Tensor, past: Past, sight: Sight
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output [B, T, hidden], and its new keys and values [B, T, width].

        embedded, features: [B, T, hidden]
        """
        normed = self.hidden_norm(features)
        pairs = torch.cat((self.input_layernorm(embedded), normed), -1)
        mixed, keys, values = self.self_attn(pairs, past, sight)
        x = (normed if self._norms_residual else features) + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class EagleHead(nn.Module):
    """An EAGLE-3 head. Modules and parameters have the names of published checkpoints.

    layers: layers after the first, by number
    positions: number of positions in the rotary table
    vocabulary: number of token ids of the tokenizer
    """

    ids: Tensor  # [draft vocabulary] int64: the target's id for each token of the head
    cos: Tensor
    sin: Tensor

    def __init__(self, config: HeadConfig, positions: int, vocabulary: int) -> None:
        super().__init__()
        layer, hidden = config.layer, config.layer.hidden_size
        self.config, self.vocabulary = config, vocabulary
        self.fc = nn.Linear(config.features, hidden, bias=False)
        self.midlayer = HeadLayer(layer, config.norms_residual)
        self.layers = nn.ModuleDict(
            {str(index): Layer(layer, WHOLE) for index in range(1, layer.layers)}
        )
        self.norm = RMSNorm(hidden, layer.norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocabulary, bias=False)
        self.embed_tokens = nn.Embedding(layer.vocab_size, hidden)
        self.register_buffer("ids", torch.arange(config.draft_vocabulary), persistent=False)
        cos, sin = rotary_tables(layer, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        rows: Tensor,
        positions: Tensor,
        context_mask: Tensor,
        tree_mask: Tensor,
        cache: KeysValues,
    ) -> Hidden:
        """Run a forward pass over new nodes, like Decoder.forward; returns states of all nodes.

        features: [B, T, hidden], the feature of each node
        """
        x = self.embed_tokens(tokens)
        cos, sin = (
            nn.functional.embedding(positions, table)[:, :, None].to(x.dtype)
            for table in (self.cos, self.sin)
        )
        sight = Sight(cos, sin, context_mask.to(torch.bool), tree_mask.to(torch.bool))

        def past(layer: int) -> Past:
            keys, values = cache.keys[layer], cache.values[layer]
            slots = context_mask.shape[-1]
            return Past(read_rows(keys, rows, slots), read_rows(values, rows, slots), None, None)

        states, keys, values = self.midlayer(x, features, past(0), sight)
        new_keys, new_values = [keys], [values]
        for index, layer in enumerate(self.layers.values(), 1):
            states, keys, values = layer(states, past(index), sight)
            new_keys.append(keys)
            new_values.append(values)
        return Hidden(states, KeysValues(tuple(new_keys), tuple(new_values)))

    def logits(self, states: Tensor) -> Tensor:  # [B, P, hidden] -> [B, P, vocabulary] float32
        """Apply the head's output layer. Tokens outside its vocabulary are masked."""
        scores = self.lm_head(self.norm(states)).float()
        padded = scores.new_full((*scores.shape[:-1], self.config.layer.vocab_size), MASKED)
        padded[..., self.ids] = scores
        logits: Tensor = padded[..., : self.vocabulary]
        return logits


class OfTarget(NamedTuple):
    """Data from the target for building a head. vocabulary: number of token ids"""

    config: ModelConfig
    vocabulary: int
    dtype: torch.dtype
    device: torch.device
    embeddings: Callable[[], Tensor]  # [vocab_size, hidden], for a head without embeddings

    @classmethod
    def of(cls, target: Decoder) -> OfTarget:
        """Return the data of a target in this process, with its precision and device."""
        shared = target.model.embed_tokens.weight
        return cls(target.config, target.vocabulary, shared.dtype, shared.device, lambda: shared)


def read_head(directory: Path, target: OfTarget, positions: int) -> EagleHead:
    """Load a head, with the target's embeddings if it has none. Raises UnsupportedModel for a
    checkpoint that does not fit the target.
    """
    config = read_head_config(directory, target.config)
    shapes = {_named(name): shape for name, shape in tensor_shapes(directory).items()}
    has_embedding = _EMBEDDING in shapes
    shapes.setdefault(_EMBEDDING, (target.config.vocab_size, target.config.hidden_size))
    with torch.device("meta"):
        head = EagleHead(config, positions, target.vocabulary)
    parameters = dict(head.named_parameters())
    for name, parameter in parameters.items():
        if name not in shapes:
            raise UnsupportedModel(f"{directory}: tensor {name} of an EAGLE-3 head is missing")
        check_shape(directory, name, shapes[name], parameter.shape)
    extra = sorted(shapes.keys() - parameters.keys() - {_IDS, *_UNUSED})
    if extra:
        raise UnsupportedModel(
            f"{directory}: tensor {extra[0]} is not part of an EAGLE-3 head as computed here"
        )
    tensors = {} if has_embedding else {_EMBEDDING: target.embeddings()}
    for path in weight_files(directory):
        tensors |= {_named(name): tensor for name, tensor in load_file(path).items()}
    head.load_state_dict(
        {name: tensors[name].to(target.device, target.dtype) for name in parameters}, assign=True
    )
    head.ids = _target_ids(directory, config, tensors.get(_IDS))
    return head.to(target.device).requires_grad_(False).eval()


def _named(name: str) -> str:
    """Convert a tensor's name to the name in EAGLE's own code."""
    return name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)


def _target_ids(directory: Path, config: HeadConfig, offsets: Tensor | None) -> Tensor:
    """Return the target's id for each token of the head: [draft vocabulary] int64.

    offsets: `d2t`, target id minus head id; None in heads with the full vocabulary
    """
    total, size = config.layer.vocab_size, config.draft_vocabulary
    if size == total:
        return torch.arange(size)
    if offsets is None:
        raise UnsupportedModel(
            f"{directory} has no tensor {_IDS}: the ids of its {size} tokens are not known"
        )
    check_shape(directory, _IDS, offsets.shape, (size,))
    ids = torch.arange(size) + offsets.to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= total or len(set(ids.tolist())) < size:
        raise UnsupportedModel(
            f"{directory}: tensor {_IDS} must lead to {size} different ids from 0 to {total - 1}"
        )
    return ids
