"""PARD-2's target-dependent mode (An et al., arXiv 2605.08632): a draft that is told what its
target computed.

The draft is a causal language model with a mask token. The target's states at a token, projected
and scaled, are added to the embedding of the next token. config.json has `pard2_target_layers`,
`pard2_scale` and `pard2_proj_bias`; the projection lies in a file of its own, `warp_model.bin`.

States are numbered as Hugging Face numbers `hidden_states`: 0 are the embeddings, i leaves layer i,
and the last is the normalised one. Negative numbers count from the end.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.errors import UnsupportedModel
from inference.json_file import LARGEST, Json, read_json
from inference.model.checkpoint import opened
from inference.model.decoder import Decoder, RMSNorm

FILES = ("warp_model.safetensors", "warp_model.bin")
"""A projection's file, by name: the first that is there is taken. The second is as published."""

_STATES, _SCALE = "pard2_target_layers", "pard2_scale"
_WEIGHT, _BIAS = "target_proj.weight", "target_proj.bias"

_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What torch.load() raises for bytes that are no file of tensors."""


@dataclass(frozen=True)
class Projection:
    """What a draft adds to the embedding of a token, from its target's states before the token.

    states: numbers of the states, from 0, in the order that the projection takes them
    norm: the target's last, which makes the last state
    depth: layers of the target; also the number of its last state
    weight: [hidden size of the draft, states * hidden size of the target]
    bias: [hidden size of the draft]
    """

    states: tuple[int, ...]
    norm: RMSNorm
    depth: int
    scale: float
    weight: Tensor
    bias: Tensor | None

    @property
    def kept(self) -> tuple[int, ...]:
        """Layers of the target whose inputs are its states, ascending, as a Decoder keeps them."""
        return tuple(sorted(set(self.states)))

    def no_features(self, count: int) -> Tensor:  # [count, kept * hidden]
        """Return features of tokens that have none before them: 0."""
        return self.norm.weight.new_zeros(count, len(self.kept) * self.norm.weight.shape[0])

    def __call__(self, features: Tensor) -> Tensor:
        """Return what is added [n, hidden], for features of kept layers [n, kept * hidden]."""
        by_layer = dict(zip(self.kept, features.chunk(len(self.kept), -1), strict=True))
        if self.depth in by_layer:
            by_layer[self.depth] = self.norm(by_layer[self.depth])
        states = torch.cat([by_layer[state] for state in self.states], -1)
        return F.linear(states.to(self.weight), self.weight, self.bias) * self.scale


def takes_states(directory: Path) -> bool:
    """Whether a checkpoint's config.json tells of a projection of its target's states."""
    return not read_json(directory / "config.json", UnsupportedModel).field(_STATES).absent


def projection_file(directory: Path) -> Path | None:
    """Return the file with a checkpoint's projection; None where it has none."""
    return next((directory / name for name in FILES if (directory / name).is_file()), None)


def load_projection(path: Path, draft: Decoder, target: Decoder) -> Projection:
    """Load the projection in a draft's checkpoint, to where the draft is and in its precision.

    Raises UnsupportedModel for one that does not fit the draft and the target.
    """
    raw, depth = read_json(path.parent / "config.json", UnsupportedModel), target.config.layers
    states = raw.field(_STATES).each(lambda each: _state(each, depth))
    if not states:
        raw.field(_STATES).refuse("a list of one or more states")
    scale, biased = raw.field(_SCALE), raw.field("pard2_proj_bias")
    if scale.absent:
        raise UnsupportedModel(f"{raw.where} has no {_SCALE}, which {path.name} is multiplied by")
    tensors, wanted = _read(path), [_WEIGHT]
    if not biased.absent and biased.flag():
        wanted.append(_BIAS)
    if sorted(tensors) != sorted(wanted):
        found = ", ".join(sorted(tensors)) or "none"
        raise UnsupportedModel(f"{path}: tensors {' and '.join(wanted)} are needed, not {found}")
    _check_sizes(path, tensors, len(states), draft, target)
    like = draft.model.embed_tokens.weight
    weight, bias = tensors[_WEIGHT], tensors.get(_BIAS)
    return Projection(
        states,
        target.model.norm,
        depth,
        scale.number(),
        weight.to(like),
        None if bias is None else bias.to(like),
    )


def _check_sizes(
    path: Path, tensors: Mapping[str, Tensor], states: int, draft: Decoder, target: Decoder
) -> None:
    hidden, width = draft.config.hidden_size, target.config.hidden_size
    for name, size in ((_WEIGHT, (hidden, states * width)), (_BIAS, (hidden,))):
        if name in tensors and tensors[name].shape != size:
            raise UnsupportedModel(
                f"{path}: {name} has shape {tuple(tensors[name].shape)}: {size} is needed for "
                f"{states} states of a target of hidden size {width} and a draft of {hidden}"
            )


def _state(number: Json, depth: int) -> int:
    """Return a state's number, counted from 0, for a target of so many layers."""
    given = number.integer(-LARGEST)
    if not -depth - 1 <= given <= depth:
        number.refuse(f"{-depth - 1} to {depth}, a state of this target of {depth} layers,")
    return given if given >= 0 else depth + 1 + given


def _read(path: Path) -> dict[str, Tensor]:
    """Read a file's tensors by name. Of torch's format only tensors are taken, no code."""
    if path.suffix == ".safetensors":
        with opened(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise UnsupportedModel(
            f"{path} cannot be read as a file of tensors ({type(error).__name__}): download it "
            f"again, or store its tensors as {FILES[0]}"
        ) from error
    named = isinstance(held, dict) and all(isinstance(name, str) for name in held)
    if not named or not all(isinstance(one, Tensor) for one in held.values()):
        raise UnsupportedModel(f"{path} holds something else than tensors by name")
    return dict(held)
