"""The work of each operation for the engines of a NeuronCore: cycles, bytes and instructions.

KINDS is the table of operations: which engine computes each. Cycles are AWS's rules of thumb
(aws-neuron-sdk, nki/guides/architecture/trainium_inferentia2_arch.rst): VectorE takes N cycles for
N elements a lane with one operand and 2 N with two, ScalarE N, TensorE max(N, 64) for a tile of 128
by 128 and N moving columns, four times that in float32; an instruction that waits for the one
before it takes 100 more. Tensors are taken to be spread over all lanes, so this is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from compile.ops.recording import Op, Value

LANES = 128
_COLUMNS = 512  # elements a lane of one instruction, as PSUM's banks hold them
_WAIT = 100  # cycles of an instruction that waits for the one before it
_LEAST_MOVING = 64  # cycles of the shortest product of two tiles
_FLOAT32 = 4  # times that TensorE takes longer in float32
_ROUND = 8  # largest values that one round of top-k finds


def _table(**kinds: str) -> Mapping[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


KINDS: Mapping[str, str] = _table(
    vector="add sub rsub mul div neg reciprocal abs maximum minimum clamp eq ne gt ge lt le where "
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ "
    "__or__ __lshift__ __rshift__ logical_and logical_or logical_not _to_copy clone cat stack copy "
    "full_like fill masked_fill constant_pad_nd repeat floor round sign ones_like zeros_like",
    scalar="exp log log1p expm1 rsqrt sqrt sigmoid tanh silu gelu sin cos pow erf",
    reduce="amax amin sum mean argmax cumsum any all max min prod",
    softmax="_softmax _log_softmax",
    matmul="mm bmm addmm baddbmm",
    top_k="topk",
    look_up="embedding index_select gather index",
    write="scatter index_put index_copy",
    collective="all_reduce all_gather",
    constant="arange scalar_tensor full empty zeros ones new_empty empty_like new_zeros eye",
)


@dataclass(frozen=True)
class OpWork:
    """The work of an operation for each part of a core."""

    weights: float = 0.0  # bytes of weights that are read
    cache: float = 0.0  # bytes of keys and values that are read or written
    copied: float = 0.0  # bytes of computed values that DMA moves
    vector: float = 0.0  # cycles
    widened: float = 0.0  # cycles of VectorE that weights are widened in, tile by tile as they come
    scalar: float = 0.0  # cycles
    tensor: float = 0.0  # cycles
    collectives: float = 0.0  # times that the ranks wait for each other
    exchanged: float = 0.0  # bytes that a rank receives
    instructions: float = 0.0  # about how many it becomes

    def __add__(self, other: OpWork) -> OpWork:
        return OpWork(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> OpWork:
        return OpWork(*(getattr(self, f.name) * factor for f in fields(self)))


def op_work(op: Op) -> OpWork:
    """The work of one operation. Views and constants take none. Raises KeyError for one that is not
    in KINDS.
    """
    if op.view or op.constant:
        return OpWork()
    return _read(op) + _computed(op, KINDS[op.name]) + OpWork(instructions=instructions(op))


def instructions(op: Op) -> int:
    """About how many instructions an operation becomes: tiles of 128 lanes by 512 columns."""
    kind = None if op.view or op.constant else KINDS.get(op.name)
    if kind is None:
        return 0
    if kind == "matmul":
        batch, rows, inner, columns = _product(op)
        tiles = batch * math.ceil(inner / LANES) * math.ceil(columns / LANES)
        return 2 * tiles * math.ceil(rows / _COLUMNS)
    if kind == "top_k":
        return 2 * math.ceil(_rows(op.inputs[0]) / LANES) * _rounds(op)
    return math.ceil(_largest(op) / (LANES * _COLUMNS))


def _read(op: Op) -> OpWork:
    """Bytes that move from or to memory: all of a weight or cache that is computed with, the rows
    of one that is looked up in or written.
    """
    if KINDS[op.name] == "look_up":
        source, size = op.inputs[0].kind, op.outputs[0].bytes
        if source in ("weight", "state"):
            return OpWork(weights=size) if source == "weight" else OpWork(cache=size)
        return OpWork(copied=2 * size)
    if KINDS[op.name] == "write":
        size = op.inputs[-1].bytes
        return OpWork(cache=size) if op.inputs[0].kind == "state" else OpWork(copied=2 * size)
    return OpWork(
        weights=sum(value.bytes for value in op.inputs if value.kind == "weight"),
        cache=sum(value.bytes for value in op.inputs if value.kind == "state"),
    )


def _computed(op: Op, kind: str) -> OpWork:
    lanes = math.ceil(_largest(op) / LANES)
    if _widens(op):
        return OpWork(widened=lanes)
    if kind == "vector":
        full = sum(value.elements * 2 > _largest(op) for value in op.inputs)
        return OpWork(vector=lanes * min(max(full, 1), 2) + _WAIT)
    if kind == "scalar":
        return OpWork(scalar=lanes + _WAIT)
    if kind == "reduce":
        return OpWork(vector=lanes + _WAIT)
    if kind == "softmax":
        return OpWork(vector=4 * lanes + 3 * _WAIT, scalar=lanes + _WAIT)
    if kind == "matmul":
        return OpWork(tensor=_product_cycles(op))
    if kind == "top_k":
        source, rounds = op.inputs[0], _rounds(op)
        each = 2 * source.shape[-1] + _WAIT  # one pass finds eight values, another takes them out
        return OpWork(vector=math.ceil(_rows(source) / LANES) * rounds * each)
    if kind == "collective":
        return OpWork(collectives=1, exchanged=op.outputs[0].bytes)
    return OpWork()


def _widens(op: Op) -> bool:
    """Whether an operation makes numbers of 8 bits, which are weights, as wide as what they are
    multiplied with.
    """
    source = op.inputs[0]
    return op.name == "_to_copy" and source.kind == "weight" and source.dtype.itemsize == 1


def _product_cycles(op: Op) -> float:
    """Cycles with the better of both operands held in the array and the other one moving."""
    batch, rows, inner, columns = _product(op)
    tiles = math.ceil(inner / LANES)
    held_columns = tiles * math.ceil(columns / LANES) * max(rows, _LEAST_MOVING)
    held_rows = tiles * math.ceil(rows / LANES) * max(columns, _LEAST_MOVING)
    slower = _FLOAT32 if op.outputs[0].dtype == torch.float32 else 1
    return float(batch * min(held_columns, held_rows) * slower)


def _product(op: Op) -> tuple[int, int, int, int]:
    """Batch, rows, inner size and columns of a product of matrices."""
    a, b = [value.shape for value in op.inputs if len(value.shape) > 1][-2:]
    return (a[0] if len(a) == 3 else 1), a[-2], a[-1], b[-1]


def _rounds(op: Op) -> int:
    """Rounds of top-k."""
    count: int = op.arguments[1]
    return math.ceil(count / _ROUND)


def _largest(op: Op) -> int:
    """Elements of the largest tensor that is gone through."""
    return max(value.elements for value in (*op.inputs, *op.outputs))


def _rows(value: Value) -> int:
    return value.elements // max(value.shape[-1], 1)
