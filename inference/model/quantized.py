"""Weights of drafts with 8 or 4 bits, multiplied by torch's own kernels. Not yet run on a GPU.

int8 also rounds states, with a scale for each node, so that a node's result does not depend on its
neighbours in a batch. int4 rounds only weights, in groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.errors import InvalidRequest, UnsupportedModel
from inference.model.decoder import Decoder

Quantization = Literal["int8", "int4"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)

GROUP = 32
"""Number of inputs of an int4 matrix with a common scale and middle."""

_LEVELS = 127  # int8 is used from -127 to 127
_MIDDLE = 128  # zero point of uint8 states on the CPU
_TINY = 1e-20
_OUTPUTS = 16  # int4 kernels need a multiple of this number of outputs
_AT_ONCE = 1 << 14  # outputs to round at a time, to avoid a complete float32 copy of a head
_MIN_ROWS = 32  # CUDA's integer product needs more than 16

Module = TypeVar("Module", bound=nn.Module)


def quantize(module: Module, weights: Quantization) -> Module:
    """Quantize every matrix of a decoder or a part of a decoder in place; return the module.

    The head is cut at the vocabulary, and untied from the embeddings. To keep the original,
    quantize copy.deepcopy(module, {id(part): part for part in module.parameters()}), which shares
    the rest.

    Raises InvalidRequest for an unsupported device, UnsupportedModel for sizes that cannot be
    grouped.
    """
    if isinstance(module, Decoder):
        cut = module.head_weight()[: module.vocabulary]
        module.lm_head = CutHead(product(cut, None, weights))
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if type(child) is nn.Linear:
                setattr(owner, name, product(child.weight, child.bias, weights))
    return module


def product(weight: Tensor, bias: Tensor | None, weights: Quantization) -> nn.Module:
    """Return a module that computes x W' + b for x [..., inputs], in x's precision.

    weight: [outputs, inputs], bias: [outputs]

    Raises InvalidRequest and UnsupportedModel like quantize().
    """
    check_device(weight.device, weights)
    weight = weight.detach()
    if weights == "int4":
        return Int4Product(to_int4(weight), bias)
    return int8_product(to_int8(weight), bias)


def int8_product(matrix: Int8Matrix, bias: Tensor | None) -> nn.Module:
    """Return product() for a quantized matrix, by the device's fastest exact kernel.

    bias: [outputs]
    """
    on_cpu = matrix.levels.device.type == "cpu"
    packed = on_cpu and (is_exact(halves=False) or is_exact(halves=True))
    return (Int8PackedProduct if packed else Int8Product)(matrix, bias)


class Int8Matrix(NamedTuple):
    """levels * scale"""

    levels: Tensor  # [outputs, inputs] int8
    scale: Tensor  # [outputs] float32


class Int4Matrix(NamedTuple):
    """(levels - 8) * scale + middle"""

    levels: Tensor  # [outputs, inputs] int32 of 0 to 15
    scale: Tensor  # [outputs, inputs / GROUP] bfloat16
    middle: Tensor  # [outputs, inputs / GROUP] bfloat16


def to_int8(weight: Tensor) -> Int8Matrix:
    """Round a matrix [outputs, inputs] with a scale for each output."""
    scale = weight.abs().amax(1).float().clamp(min=_TINY) / _LEVELS
    blocks = zip(torch.split(weight, _AT_ONCE), torch.split(scale, _AT_ONCE), strict=True)
    levels = [torch.round(block.float() / row[:, None]).to(torch.int8) for block, row in blocks]
    return Int8Matrix(torch.cat(levels), scale)


def to_int4(weight: Tensor) -> Int4Matrix:
    """Round a matrix [outputs, inputs] to 16 levels between the extremes of each group.

    Raises UnsupportedModel if the inputs are not a multiple of GROUP.
    """
    inputs = weight.shape[1]
    if inputs % GROUP:
        raise UnsupportedModel(
            f"int4 needs matrices whose inputs are a multiple of {GROUP}, this model has one of "
            f"{inputs}: int8 supports any"
        )
    blocks = [_grouped(block) for block in torch.split(weight, _AT_ONCE)]
    return Int4Matrix(*(torch.cat(pieces) for pieces in zip(*blocks, strict=True)))


def _grouped(weight: Tensor) -> Int4Matrix:
    wide = weight.float().reshape(len(weight), -1, GROUP)
    low, high = wide.amin(-1), wide.amax(-1)
    # rounded before the levels are computed, so that they compensate
    scale = ((high - low) / 15).clamp(min=_TINY).bfloat16()
    middle = (low + 8 * scale.float()).bfloat16()
    levels = (wide - middle.float()[..., None]) / scale.float()[..., None] + 8
    return Int4Matrix(torch.round(levels).clamp(0, 15).int().flatten(1), scale, middle)


class Int8PackedProduct(nn.Module):
    """The product on a CPU, by oneDNN's integer kernels.

    On processors without VNNI, some kernels saturate sums of two large products at 16 bits. There
    each state is split into two halves (in two rows), which gives the same result.
    """

    def __init__(
        self, matrix: Int8Matrix, bias: Tensor | None, *, halves: bool | None = None
    ) -> None:
        super().__init__()
        self._halves = not is_exact(halves=False) if halves is None else halves
        self._packed = torch.ops.onednn.qlinear_prepack(matrix.levels, [1, matrix.levels.shape[1]])
        self._scale, self._bias = matrix.scale, None if bias is None else bias.detach().float()
        self._zeros = torch.zeros(len(matrix.scale), dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        scale = _scales(x)
        rounded = torch.round(x.float() / scale).add_(_MIDDLE).to(torch.uint8).flatten(0, -2)
        nodes, middle = len(rounded), _MIDDLE
        if self._halves:
            half, middle = rounded >> 1, _MIDDLE // 2
            rounded = torch.cat((half, rounded - half))
        sums = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, middle, self._packed, self._scale, self._zeros, None, 1.0, 0,
            torch.float32, "none", [], "",
        )  # fmt: skip
        if self._halves:
            sums = sums[:nodes] + sums[nodes:]
        return _finished(sums.view(*x.shape[:-1], -1) * scale, self._bias, x)


@cache
def is_exact(*, halves: bool) -> bool:
    """Return whether this CPU's integer kernels sum the largest products without saturation.

    halves: for states that are split into halves
    """
    signs = torch.tensor([1, -1]).repeat(32)
    levels = (signs[:, None] * _LEVELS).to(torch.int8).expand(-1, 256).contiguous()
    multiply = Int8PackedProduct(Int8Matrix(levels, torch.ones(64)), None, halves=halves)
    sums = levels.sum(1).float()
    return all(torch.allclose(multiply(torch.ones(nodes, 256)), sums) for nodes in (1, 40))


class Int8Product(nn.Module):
    """The product by torch._int_mm (CUDA's integer product), or in float32 on a CPU where that
    would saturate.
    """

    def __init__(self, matrix: Int8Matrix, bias: Tensor | None) -> None:
        super().__init__()
        self._outputs = len(matrix.levels)
        levels = F.pad(matrix.levels, (0, -matrix.levels.shape[1] % 8, 0, -self._outputs % 8))
        self._levels, self._scale = levels.t(), matrix.scale
        exact = levels.device.type != "cpu" or is_exact(halves=False)
        self._multiply: Callable[..., Tensor] = torch._int_mm if exact else _multiply_wide
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        scale = _scales(x)
        rounded = torch.round(x.float() / scale).to(torch.int8).flatten(0, -2)
        nodes = len(rounded)
        missing = (0, len(self._levels) - rounded.shape[1], 0, max(0, _MIN_ROWS - nodes))
        sums = self._multiply(F.pad(rounded, missing), self._levels)[:nodes, : self._outputs]
        wide = sums.float().view(*x.shape[:-1], -1)
        return _finished(wide * scale * self._scale, self._bias, x)


class Int4Product(nn.Module):
    """The product by torch's tinygemm kernels, in bfloat16."""

    def __init__(self, matrix: Int4Matrix, bias: Tensor | None) -> None:
        super().__init__()
        self._outputs, inputs = matrix.levels.shape
        missing = -self._outputs % _OUTPUTS
        levels, scale, middle = (F.pad(tensor, (0, 0, 0, missing)) for tensor in matrix)
        # [inputs / GROUP, outputs, 2]
        self._scale_and_middle = torch.stack((scale.t(), middle.t()), -1).contiguous()
        self._bias = None if bias is None else bias.detach().float()
        self._multiply: Callable[..., Tensor]
        if levels.device.type == "cpu":
            self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
            self._multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        else:
            pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
            tiles = 8 if inputs % 128 == 0 else 2
            self._packed = torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)
            self._multiply = torch.ops.aten._weight_int4pack_mm

    def forward(self, x: Tensor) -> Tensor:
        narrow = x.bfloat16().flatten(0, -2)
        sums = self._multiply(narrow, self._packed, GROUP, self._scale_and_middle)
        return _finished(sums[:, : self._outputs].view(*x.shape[:-1], -1), self._bias, x)


class CutHead(nn.Module):
    """A head whose matrix was cut at the vocabulary before quantization."""

    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self.product = product

    def forward(self, states: Tensor, vocabulary: int) -> Tensor:
        logits: Tensor = self.product(states)
        return logits


def _multiply_wide(states: Tensor, levels: Tensor) -> Tensor:
    return states.float() @ levels.float()


def _scales(x: Tensor) -> Tensor:  # [..., inputs] -> [..., 1] float32
    return x.abs().amax(-1, keepdim=True).float().clamp(min=_TINY) / _LEVELS


def _finished(sums: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return (sums if bias is None else sums + bias).to(x.dtype)


def check_device(device: torch.device, weights: Quantization) -> None:
    """Raise InvalidRequest for a device without kernels for such matrices."""
    if device.type == "cpu":
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            raise InvalidRequest(
                f"{weights} on cpu needs torch with oneDNN, and this build has none: take a GGUF "
                "draft, or the checkpoint's own precision"
            )
    elif device.type != "cuda":
        raise InvalidRequest(f"{weights} is for cpu and cuda, got {device.type}")
    elif weights == "int4" and torch.cuda.get_device_capability(device) < (8, 0):
        raise InvalidRequest(
            f"int4 on cuda needs compute capability 8.0 or later, {device} has less: take int8"
        )
