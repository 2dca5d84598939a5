"""An EAGLE-3 head (Li et al. 2025): one or a few layers that draft from their target's features.

A node of the head is a token with the feature of the token before it. If the target has computed
that token, the feature is `fc` of the target's states; otherwise it is the output of the head's own
layers for the token, before the last norm. Heads are published in three forms, all supported:

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

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from inference.errors import InvalidRequest, UnsupportedModel
from inference.files.json_file import Json
from inference.model.attention import MASKED, Sight
from inference.model.cache import KeysValues, read_rows
from inference.model.checkpoints.config import (
    ModelConfig,
    check_shape,
    parse_config,
    read_config_json,
)
from inference.model.checkpoints.weight_files import tensor_shapes, weight_files
from inference.model.decoder import Decoder, Hidden
from inference.model.layers import MLP, WHOLE, Attention, Layer, Past, RMSNorm
from inference.model.rotary import rotary_tables

_LAYER, _LAYERS_READ = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
_OTHER_HEADS = ("norm_before_fc", "norm_output", "fc_norm")
EAGLE3 = "eagle3"
"""The name of the layers that EAGLE-3 reads."""

MIN_LAYERS = 7
MAX_HEAD_LAYERS = 16

_NO_WINDOW = {"sliding_window": None, "use_sliding_window": False}


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and form of a head's computation.

    layer: how many layers it has, and the sizes of each; the vocabulary is the target's
    draft_vocabulary: tokens that it can propose
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
    """Return the layers that --features selects, ascending: numbers separated by commas, or EAGLE3.
    The number of the target's layers stands for the last layer's output.

    Raises InvalidRequest for layers that the target does not have.
    """
    if named == EAGLE3:
        if layers < MIN_LAYERS:
            raise InvalidRequest(
                f"--features {EAGLE3} needs a target of {MIN_LAYERS} layers or more, this one "
                f"has {layers}: name layers"
            )
        return usual_layers(layers)
    chosen = tuple(sorted({int(part) for part in named.split(",")}))
    if chosen[-1] > layers:
        raise InvalidRequest(f"--features {named}: this target takes 0 to {layers}")
    return chosen


def read_head_config(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read the config.json of a head that was made for this target.

    Raises UnsupportedModel for anything but an EAGLE-3 head that is supported and fits.
    """
    path, raw = directory / "config.json", read_config_json(directory)
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
    asked = sizes.hidden_size if width.absent else width.integer(1)
    if asked != target.hidden_size:
        raise UnsupportedModel(
            f"{path}: the head is for a target of hidden size {asked}, but this one has "
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
    """Return the layers whose inputs are the features, for a target of `layers` layers."""
    ids, outputs = raw.field(_LAYERS_READ), 0
    if ids.absent and not raw.field("eagle_config").absent:
        ids, outputs = raw.field("eagle_config").field(_LAYERS_READ), 1
    if not ids.absent:
        given = ids.each(lambda each: outputs + each.integer(0, layers - outputs))
        return given if list(given) == sorted(set(given)) else ids.refuse("ascending layers")
    if layers < MIN_LAYERS:
        raise UnsupportedModel(
            f"{raw.where}: {_LAYERS_READ} is missing, and what stands for it are 3 layers of a "
            f"target of {MIN_LAYERS} or more; this one has {layers}"
        )
    return usual_layers(layers)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs EAGLE-3 reads of a target of MIN_LAYERS or more."""
    return 2, layers // 2, layers - 3


_BESIDE = WHOLE._replace(column=lambda size, out, bias: nn.Linear(2 * size, out, bias))
"""Queries, keys and values are made of an embedding and a feature, side by side."""

IDS, UNUSED = "d2t", ("t2d",)
"""Tensors of heads with a vocabulary of their own: ids of its tokens, and what is not read."""

_EMBEDDING = "embed_tokens.weight"


class HeadLayer(nn.Module):
    """The head's first layer: attention over pairs of embedding and feature, and MLP."""

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
    """A head. Modules and parameters are named as in published checkpoints.

    layers: those behind the first, by number
    positions: how many positions the rotary table covers
    vocabulary: ids of the tokenizer
    """

    ids: Tensor  # [draft vocabulary] int64: the target's id of each token of the head
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
        """Run a forward pass over new nodes, as Decoder.forward does; states are of all nodes.

        features: [B, T, hidden], each node's own
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
        """Apply the head's own output layer. Tokens outside its vocabulary are masked."""
        named = self.lm_head(self.norm(states)).float()
        return spread(named, self.ids, self.config.layer.vocab_size)[..., : self.vocabulary]


def spread(logits: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Return logits [..., n] of the tokens ids [n] among all of a vocabulary; others are masked."""
    every = logits.new_full((*logits.shape[:-1], vocabulary), MASKED)
    every[..., ids] = logits
    return every


class OfTarget(NamedTuple):
    """Parts of its target that a head is built from. vocabulary: ids of the tokenizer."""

    config: ModelConfig
    vocabulary: int
    dtype: torch.dtype
    device: torch.device
    embeddings: Callable[[], Tensor]  # [vocab_size, hidden], for a head without its own
    output: Callable[[], Tensor]  # [vocabulary or more, hidden], the same

    @classmethod
    def of(cls, target: Decoder) -> OfTarget:
        """Take the parts of a target in this process: its precision and its device, too."""
        shared = target.model.embed_tokens.weight
        place = shared.dtype, shared.device
        return cls(target.config, target.vocabulary, *place, lambda: shared, target.head_weight)


def read_head(directory: Path, target: OfTarget, positions: int) -> EagleHead:
    """Load a head, wherever its target is.

    The target's embeddings are taken where the head has none of its own.

    Raises UnsupportedModel for a checkpoint that does not fit the target.
    """
    config = read_head_config(directory, target.config)
    shapes = {_named(name): shape for name, shape in tensor_shapes(directory).items()}
    own = _EMBEDDING in shapes
    shapes.setdefault(_EMBEDDING, (target.config.vocab_size, target.config.hidden_size))
    with torch.device("meta"):
        head = EagleHead(config, positions, target.vocabulary)
    wanted = dict(head.named_parameters())
    for name, parameter in wanted.items():
        if name not in shapes:
            raise UnsupportedModel(f"{directory}: tensor {name} of an EAGLE-3 head is missing")
        check_shape(directory, name, shapes[name], parameter.shape)
    others = sorted(shapes.keys() - wanted.keys() - {IDS, *UNUSED})
    if others:
        raise UnsupportedModel(
            f"{directory}: tensor {others[0]} is not part of an EAGLE-3 head as computed here"
        )
    tensors = {} if own else {_EMBEDDING: target.embeddings()}
    for path in weight_files(directory):
        tensors |= {_named(name): tensor for name, tensor in load_file(path).items()}
    head.load_state_dict(
        {name: tensors[name].to(target.device, target.dtype) for name in wanted}, assign=True
    )
    head.ids = target_ids(
        directory, config.layer.vocab_size, config.draft_vocabulary, tensors.get(IDS)
    )
    return head.to(target.device).requires_grad_(False).eval()


def _named(name: str) -> str:
    """Return a tensor's name as EAGLE's own code spells it."""
    return name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)


def target_ids(directory: Path, every: int, size: int, offsets: Tensor | None) -> Tensor:
    """Return the target's id of each of the `size` tokens that a head can propose: [size] int64.

    every: tokens of the target
    offsets: `d2t`, the difference between the two ids; None in heads that propose every token
    """
    if size == every:
        return torch.arange(size)
    if offsets is None:
        raise UnsupportedModel(
            f"{directory} has no tensor {IDS}: the ids of its {size} tokens are not known"
        )
    check_shape(directory, IDS, offsets.shape, (size,))
    ids = torch.arange(size) + offsets.to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= every or len(set(ids.tolist())) < size:
        raise UnsupportedModel(
            f"{directory}: tensor {IDS} must lead to {size} different ids from 0 to {every - 1}"
        )
    return ids
