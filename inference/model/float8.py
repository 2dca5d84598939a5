"""Matrices of 8-bit floats, each with a float32 scale for every output.

A matrix is stored as e4m3 (a sign, four bits of exponent, three of mantissa) and widened where it
is used. The product of the widened matrix is multiplied by the scales. States, keys, values,
embeddings, norms and biases keep their own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.model.checkpoint import DTYPES
from inference.model.decoder import Decoder, Layers

FLOAT8 = torch.float8_e4m3fn
LARGEST = 240.0
"""The largest finite number of NeuronCores before Trainium3 (neuronx_distributed 0.18,
quantization/quantization_config.py, F8E4M3_MAX). What torch's type has above, up to 448, is an
infinity or NaN there.
"""
_MATRICES = ("_proj.weight", "lm_head.weight")
_SCALE = ".scale.weight"
_TINY = 1e-20  # the least largest number of an output, so that one of zeros has a scale


def states_of(dtype: str) -> torch.dtype:
    """The type of states and caches in an artefact of this dtype."""
    return torch.bfloat16 if dtype == "fp8" else DTYPES[dtype]


def stored_type(name: str, dtype: str) -> torch.dtype:
    """The type of the parameter of this name in an artefact of this dtype."""
    if name.endswith(_SCALE):
        return torch.float32
    return FLOAT8 if dtype == "fp8" and name.endswith(_MATRICES) else states_of(dtype)


def to_float8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix [outputs, inputs]. Returns its levels, of the same shape, and the scales
    [outputs, 1] in float32 that they are to be multiplied by.
    """
    wide = matrix.float()
    scale = wide.abs().amax(1, keepdim=True).clamp(min=_TINY) / LARGEST
    return (wide / scale).clamp(-LARGEST, LARGEST).to(FLOAT8), scale


def rounded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A decoder's weights by name, with the levels of each matrix in its place and its scales
    beside it.
    """
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith(_MATRICES)]:
        found[name], found[name.removesuffix(".weight") + _SCALE] = to_float8(tensors[name])
    return found


def scaled(product: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A product with levels [..., outputs] times the scales [outputs, 1], in their type, rounded to
    `dtype`, plus the bias.
    """
    result = (product.to(scale.dtype) * scale[:, 0]).to(dtype)
    return result if bias is None else result + bias


class Float8Linear(nn.Linear):
    """x W' + b with W in levels and scales."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs, bias)
        self.scale = nn.Linear(1, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.weight.to(x.dtype))
        return scaled(product, self.scale.weight, self.bias, x.dtype)


class Float8Head(Float8Linear):
    """The output layer, cut at the tokenizer's last id."""

    def forward(self, states: Tensor, vocabulary: int) -> Tensor:  # type: ignore[override]
        product = F.linear(states, self.weight[:vocabulary].to(states.dtype))
        return scaled(product, self.scale.weight[:vocabulary], None, states.dtype)


def in_float8(decoder: Decoder) -> Decoder:
    """A decoder of the same weights with its matrices rounded: what a NeuronCore computes of them,
    on the CPU. A tied head becomes a matrix of its own, since embeddings are not rounded.
    """
    tensors = dict(decoder.named_parameters())
    if decoder.config.tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    config = replace(decoder.config, tied=False)
    layers = Layers(column=Float8Linear, row=Float8Linear, head=Float8Head)
    with torch.device("meta"):
        made = Decoder(config, len(decoder.cos), decoder.vocabulary, layers)
    made.load_state_dict(rounded(tensors), assign=True)
    return made.requires_grad_(False).eval()
