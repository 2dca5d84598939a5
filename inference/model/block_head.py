"""A DFlash head (Chen, Liang, Liu 2026, arXiv 2602.06036): one call proposes tokens of a block.

The block is the last token of the text and masks behind it, at the positions after it. Every layer
sees keys and values made of the target's features of all earlier tokens, and the whole block. The
state of the k-th mask names the token at its own position, by the target's embeddings and output
layer. With `causal_head` (JetSpec, arXiv 2606.18394) a mask sees the block's earlier tokens only.

Heads are published in two forms, and both are read: the authors' (`dflash_config`) and that of
`speculators` (`transformer_layer_config`, which may have an output layer of its own). Both number
layers by their output: layer 0 is the output of the first layer, the input of layer 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear

from inference.errors import UnsupportedModel
from inference.files.json_file import Json
from inference.model.attention import Sight
from inference.model.cache import KeysValues, read_rows
from inference.model.checkpoints.config import (
    ModelConfig,
    check_shape,
    parse_config,
    read_config_json,
)
from inference.model.checkpoints.weight_files import tensor_shapes, weight_files
from inference.model.eagle_head import IDS, MAX_HEAD_LAYERS, UNUSED, OfTarget, spread, target_ids
from inference.model.layers import WHOLE, Attention, Layer, Past, RMSNorm
from inference.model.rotary import rotary_tables, rotate

_LAYER, _OF_AUTHORS = "transformer_layer_config", "dflash_config"
MAX_BLOCK = 64


@dataclass(frozen=True)
class BlockHeadConfig:
    """Sizes and form of a head's computation.

    layer: how many layers it has, and the sizes of each; the vocabulary is the target's
    draft_vocabulary: tokens that it can propose; None without an output layer of its own
    kept: layers of the target whose inputs are its features, ascending
    block: tokens of a block, the last token of the text included
    mask: id of the mask token, in the target's vocabulary
    causal: a token of the block sees only those before it
    from_anchor: each state names the token behind its own, the last token's state included
    """

    layer: ModelConfig
    draft_vocabulary: int | None
    kept: tuple[int, ...]
    block: int
    mask: int
    causal: bool
    from_anchor: bool

    @property
    def features(self) -> int:
        """Numbers that the target gives the head for a token."""
        return len(self.kept) * self.layer.hidden_size

    @property
    def proposals(self) -> int:
        """Positions for which a call proposes tokens."""
        return self.block if self.from_anchor else self.block - 1


def is_block_head(directory: Path) -> bool:
    """Whether a directory's config.json is of a DFlash head, in either form."""
    raw = read_config_json(directory)
    return not all(raw.field(name).absent for name in (_OF_AUTHORS, "mask_token_id"))


def read_block_head_config(directory: Path, target: ModelConfig) -> BlockHeadConfig:
    """Read the config.json of a head that was made for this target.

    Raises UnsupportedModel for anything but a DFlash head that is supported and fits.
    """
    path, raw = directory / "config.json", read_config_json(directory)
    is_of_authors = raw.field(_LAYER).absent
    layer = raw if is_of_authors else raw.field(_LAYER)
    own = raw.field(_OF_AUTHORS) if is_of_authors else raw
    if is_of_authors and own.absent:
        raise UnsupportedModel(
            f"{path} has no {_OF_AUTHORS}: a DFlash head with its mask_token_id is needed"
        )
    kinds = layer.field("layer_types")
    if not kinds.absent and {*kinds.each(Json.text)} != {"full_attention"}:
        kinds.refuse("full attention in all layers")
    sizes = parse_config(layer.dictionary() | {"model_type": "qwen3"})
    for name, its, wanted in (
        ("num_hidden_layers", sizes.layers, min(sizes.layers, MAX_HEAD_LAYERS)),
        ("vocab_size", sizes.vocab_size, target.vocab_size),
        ("hidden_size", sizes.hidden_size, target.hidden_size),
    ):
        if its != wanted:
            layer.field(name).refuse(f"{wanted}, as of the target or at most,")
    block = raw.field("block_size") if own.field("block_size").absent else own.field("block_size")
    vocabulary = raw.field("draft_vocab_size")
    return BlockHeadConfig(
        layer=sizes,
        draft_vocabulary=None if vocabulary.absent else vocabulary.integer(1, sizes.vocab_size),
        kept=_kept(own, "target_layer_ids" if is_of_authors else "aux_hidden_state_layer_ids",
                   sizes.layers, target.layers),
        block=block.integer(2, MAX_BLOCK),
        mask=own.field("mask_token_id").integer(0, target.vocab_size - 1),
        causal=_is_set(own, "causal_head"),
        from_anchor=_is_set(own, "sample_from_anchor"),
    )  # fmt: skip


def _is_set(raw: Json, name: str) -> bool:
    return not raw.field(name).absent and raw.field(name).flag()


def _kept(raw: Json, name: str, layers: int, of_target: int) -> tuple[int, ...]:
    """Return the layers of the target whose inputs are the features.

    The state behind the target's last layer is published with the final norm, so heads that read
    it are refused.
    """
    ids = raw.field(name)
    if ids.absent:
        return usual_layers(layers, of_target)
    kept = ids.each(lambda each: 1 + each.integer(0, of_target - 1))
    return kept if list(kept) == sorted(set(kept)) else ids.refuse("ascending layers")


def usual_layers(layers: int, of_target: int) -> tuple[int, ...]:
    """Return the layers whose inputs a head of so many layers reads, where its config names none:
    evenly from the second to the fourth last.
    """
    if layers == 1:
        return (of_target // 2 + 1,)
    step = (of_target - 4) / (layers - 1)
    return tuple(round(1 + step * index) + 1 for index in range(layers))


class BlockHead(nn.Module):
    """A head. Parameters are named as in published checkpoints.

    positions: how many positions the rotary table covers
    embeddings, output: [vocabulary, hidden] of the target
    ids: [draft vocabulary] the target's id of each token of the head's own output layer
    """

    embeddings: Tensor
    output: Tensor
    ids: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, config: BlockHeadConfig, positions: int, vocabulary: int) -> None:
        super().__init__()
        layer, hidden = config.layer, config.layer.hidden_size
        self.config, self.vocabulary = config, vocabulary
        self.fc = nn.Linear(config.features, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, layer.norm_eps)
        self.layers = nn.ModuleList(Layer(layer, WHOLE) for _ in range(layer.layers))
        self.norm = RMSNorm(hidden, layer.norm_eps)
        self.lm_head: nn.Linear | None = None
        if config.draft_vocabulary is not None:
            self.lm_head = nn.Linear(hidden, config.draft_vocabulary, bias=False)
        for name, table in zip(("cos", "sin"), rotary_tables(layer, positions), strict=True):
            self.register_buffer(name, table, persistent=False)
        for name in ("embeddings", "output", "ids"):
            self.register_buffer(name, torch.empty(0, device="cpu"), persistent=False)

    def inject(self, features: Tensor, positions: Tensor) -> KeysValues:
        """Return keys and values of tokens with known features, for the cache: [B, C, width].

        features: [B, C, features] of the target; positions: [B, C] int32
        """
        states = self.hidden_norm(self.fc(features))
        cos, sin = self._angles(positions, states.dtype)
        keys, values = list[Tensor](), list[Tensor]()
        for attention in self._attentions():
            key = attention.k_proj(states).view(*states.shape[:2], -1, attention.head_dim)
            keys.append(rotate(attention.k_norm(key), cos, sin).flatten(2))
            values.append(attention.v_proj(states))
        return KeysValues(tuple(keys), tuple(values))

    def forward(
        self, anchors: Tensor, rows: Tensor, positions: Tensor, context: Tensor, cache: KeysValues
    ) -> Tensor:
        """Return the states of a block that name tokens, normed: [B, proposals, hidden].

        anchors: [B] last token of each text
        rows: [B] its row of the cache
        positions: [B] its position
        context: [B, 1, S] bool, slots of the cache that the block sees
        """
        block, size = self.config.block, len(anchors)
        tokens = anchors.new_full((size, block), self.config.mask)
        tokens[:, 0] = anchors
        steps = torch.arange(block, device=positions.device)
        last = len(self.cos) - 1  # states of positions beyond the text are not used
        cos, sin = self._angles((positions[:, None] + steps).clamp(max=last), self.embeddings.dtype)
        own = torch.ones(block, block, dtype=torch.bool, device=anchors.device)
        sight = Sight(cos, sin, context, (own.tril() if self.config.causal else own)[None])
        x = nn.functional.embedding(tokens, self.embeddings)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            slots = context.shape[-1]
            past = Past(read_rows(keys, rows, slots), read_rows(values, rows, slots), None, None)
            x, _, _ = layer(x, past, sight)
        first = 0 if self.config.from_anchor else 1
        states: Tensor = self.norm(x[:, first:])
        return states

    def logits(self, states: Tensor) -> Tensor:  # [B, P, hidden] -> [B, P, vocabulary] float32
        """Apply the output layer. Tokens outside its vocabulary are masked."""
        if self.lm_head is None:
            return linear(states, self.output[: self.vocabulary]).float()
        named = self.lm_head(states).float()
        return spread(named, self.ids, self.config.layer.vocab_size)[..., : self.vocabulary]

    def _attentions(self) -> list[Attention]:
        return [layer.get_submodule("self_attn") for layer in self.layers]  # type: ignore[misc]

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions [B, n], each [B, n, 1, head dim / 2]."""
        places = positions.long()
        return self.cos[places][:, :, None].to(dtype), self.sin[places][:, :, None].to(dtype)


def read_block_head(directory: Path, target: OfTarget, positions: int) -> BlockHead:
    """Load a head for a target.

    Raises UnsupportedModel for a checkpoint that does not fit the target.
    """
    config = read_block_head_config(directory, target.config)
    with torch.device("meta"):
        head = BlockHead(config, positions, target.vocabulary)
    wanted, shapes = dict(head.named_parameters()), tensor_shapes(directory)
    for name, parameter in wanted.items():
        if name not in shapes:
            raise UnsupportedModel(f"{directory}: tensor {name} of a DFlash head is missing")
        check_shape(directory, name, shapes[name], parameter.shape)
    others = sorted(shapes.keys() - wanted.keys() - {IDS, *UNUSED})
    if others:
        raise UnsupportedModel(
            f"{directory}: tensor {others[0]} is not part of a DFlash head as computed here"
        )
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        tensors |= load_file(path)

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().to(target.device, target.dtype)

    head.load_state_dict({name: moved(tensors[name]) for name in wanted}, assign=True)
    head.embeddings = moved(target.embeddings())
    if config.draft_vocabulary is None:
        head.output = moved(target.output())
    else:
        size = config.layer.vocab_size
        head.ids = target_ids(directory, size, config.draft_vocabulary, tensors.get(IDS))
    return head.to(target.device).requires_grad_(False).eval()
