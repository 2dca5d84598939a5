"""Rules over the operations of a graph: what neuronx-cc and the engines of a NeuronCore refuse or
compute wrongly.

A rule is a function that checks one operation. `broken` holds a recording against all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch

from compile.ops.op_work import KINDS, instructions
from compile.ops.ranges import Range, ranges
from compile.ops.recording import WRITES, Op, Recording
from inference.artifact import NATIVE

WIDEST_TOP_K = 16_384
MOST_INSTRUCTIONS = 5_000_000
EXACT = 2**24
"""Integers up to this are exact in float32."""
LEAST_WINDOW = 64
"""Bytes of the smallest window that a scatter may write: below it, descriptors outweigh data."""


@dataclass(frozen=True)
class RecordedGraph:
    """A recorded graph, which a check may ask beside the operation itself."""

    recording: Recording
    bounds: Mapping[int, Range]
    users: Mapping[int, Sequence[Op]]
    returned: Set[int]  # numbers of the call's results


Rule = Callable[[Op, RecordedGraph], str | None]
"""A check of one operation: what is wrong with it; None where nothing is. Its name is the rule's,
and its docstring names the document that states it.
"""


@dataclass(frozen=True)
class Violation:
    """An operation that breaks a rule, or several alike on one line."""

    rule: str
    where: str  # file:line
    function: str  # file:function of that line
    what: str  # the operation with its sizes, and what is wrong
    count: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.rule}: {self.where}: {self.what}{times}"


def broken(recording: Recording, rules: Sequence[Rule] | None = None) -> list[Violation]:
    """Every violation in a recording, alike ones counted together.

    rules: default RULES
    """
    returned = {value.number for value in recording.results}
    graph = RecordedGraph(recording, ranges(recording), recording.users(), returned)
    found = Counter(
        (rule.__name__, op.where, op.trail[0], f"{op}: {wrong}")
        for op in recording.ops
        if not op.constant
        for rule in (RULES if rules is None else rules)
        if (wrong := rule(op, graph)) is not None
    )
    violations = [Violation(*key, count) for key, count in found.items()]
    return violations + list(_too_long(recording))


def live_bytes(recording: Recording) -> tuple[int, Op]:
    """The most bytes of computed tensors that are needed at one time, each operation storing its
    result, and the operation at which that is.
    """
    last: dict[int, int] = {}
    for place, op in enumerate(recording.ops):
        last |= {value.storage: place for value in (*op.inputs, *op.outputs)}
    last |= {value.storage: len(recording.ops) for value in recording.results}
    held: dict[int, int] = {}
    most, peak = 0, recording.ops[0]
    for place, op in enumerate(recording.ops):
        for out in op.outputs:
            if out.kind == "computed" and not op.view:
                held[out.storage] = out.bytes
        if (now := sum(held.values())) > most:
            most, peak = now, op
        for value in (*op.inputs, *op.outputs):
            if last[value.storage] == place:
                held.pop(value.storage, None)
    return most, peak


def _too_long(recording: Recording) -> Iterator[Violation]:
    count = sum(instructions(op) for op in recording.ops)
    if count > MOST_INSTRUCTIONS:
        most = max(recording.ops, key=instructions)
        what = f"{most}: the graph has about {count:,} instructions, at most {MOST_INSTRUCTIONS:,}"
        yield Violation("instructions", most.where, most.trail[0], what, 1)


def known(op: Op, graph: RecordedGraph) -> str | None:
    """neuronx-cc list-operators; the table is compile/ops/op_work.py."""
    return None if op.view or op.name in KINDS else "not in the table of operations"


def top_k_shape(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, compiler/error-codes, NCC_EVRF029: an operation sort is not supported."""
    if op.name not in ("topk", "sort"):
        return None
    if op.name == "sort":
        return "a sort, which is refused"
    source = op.inputs[0]
    last = op.arguments[2] if len(op.arguments) > 2 else -1
    if len(source.shape) != 2 or last % len(source.shape) != len(source.shape) - 1:
        return f"top-k of {len(source.shape)} axes: 2, along the last, else it becomes a sort"
    return None


def top_k_width(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, nki/isa, max8: 8 to 16,384 elements a partition; ISGV902 beyond."""
    if op.name != "topk":
        return None
    width = op.inputs[0].shape[-1]
    return f"top-k of {width:,}: at most {WIDEST_TOP_K:,} wide" if width > WIDEST_TOP_K else None


def top_k_type(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, compiler/error-codes/EVRF013.rst."""
    integers = op.name == "topk" and not op.inputs[0].dtype.is_floating_point
    return "top-k of integers" if integers else None


def variadic(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, release notes of JAX NeuronX, known issues.

    argmax of floats along the last axis is a call of Neuron's own; others are reductions of
    values with their places.
    """
    if op.name in ("max", "min", "mode", "median", "kthvalue", "aminmax") and len(op.outputs) > 1:
        return "a reduction with two results"
    if op.name in ("argmax", "argmin"):
        source, axis = op.inputs[0], (op.arguments[1] if len(op.arguments) > 1 else None)
        last = axis is not None and axis % len(source.shape) == len(source.shape) - 1
        if op.name == "argmin" or not last or not source.dtype.is_floating_point:
            return "a reduction with two results, unless argmax of floats along the last axis"
    return None


def shift(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, nki/api/nki.api.shared.rst, ALU operations: no arithmetic shift right."""
    if op.name not in ("bitwise_right_shift", "__rshift__"):
        return None
    least = graph.bounds[op.inputs[0].number].least
    return "arithmetic shift of numbers that may be negative" if least < 0 else None


def integers(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, nki/api/nki.api.shared.rst, data types: arithmetic is in float32."""
    arithmetic = op.name in ("add", "sub", "rsub", "mul", "sum", "cumsum", "neg")
    out = op.outputs[0]
    if not arithmetic or out.dtype.is_floating_point:
        return None
    size = max(graph.bounds[value.number].size for value in (*op.inputs, out))
    return f"integers up to {size:,}: exact to {EXACT:,} in float32" if size > EXACT else None


def scatter_window(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, nki/deep-dives/nki-dma-bandwidth-guide.rst: small descriptors.

    `scatter` names a place for every element. `index_put` writes what its indices leave out.
    """
    if op.name in ("scatter", "scatter_add", "scatter_reduce", "masked_scatter"):
        places, item = op.inputs[1].elements, op.inputs[0].dtype.itemsize
        return f"writes {places:,} windows of {item} bytes: rows are wanted"
    if op.name in ("index_put", "index_copy", "index_add"):
        target = op.inputs[0]
        indexed = len(op.arguments[1]) if op.name == "index_put" else 1 + op.arguments[1]
        window = math.prod(target.shape[indexed:]) * target.dtype.itemsize
        if window < LEAST_WINDOW:
            return f"writes windows of {window} bytes: {LEAST_WINDOW} at least"
    return None


def gather_shape(op: Op, graph: RecordedGraph) -> str | None:
    """neuronx-distributed-inference, models/model_base.py, a comment on wrong small numbers."""
    if op.name != "gather" or op.inputs[0].shape != op.inputs[1].shape:
        return None
    return "the index has the shape of its source"


def types(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, compiler/error-codes/index.rst, NCC_EVRF062; ESPP004.rst."""
    for out in op.outputs:
        if out.dtype == torch.int64 and not _only_cast(op, graph):
            return "64-bit integers"
        if out.dtype in (torch.float64, torch.complex64, torch.complex128):
            return f"{str(out.dtype).removeprefix('torch.')}"
    return None


def _only_cast(op: Op, graph: RecordedGraph) -> bool:
    """Whether these are places from argmax or top-k, of which only 32 bits are used."""
    uses = [use for out in op.outputs for use in graph.users.get(out.number, ())]
    wide = [out for out in op.outputs if out.dtype == torch.int64]
    if any(out.number in graph.returned for out in wide):
        return False
    if op.name not in ("argmax", "topk"):
        return op.view and all(_only_cast(use, graph) or _casts(use) for use in uses)
    places = [use for use in uses if use.inputs[0].dtype == torch.int64]
    return all(_casts(use) or (use.view and _only_cast(use, graph)) for use in places)


def _casts(op: Op) -> bool:
    return op.name == "_to_copy" and op.outputs[0].dtype == torch.int32


def finite(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, neuron-runtime/nrt-troubleshoot.rst: status 1003."""
    numbers = [number for number in op.arguments if isinstance(number, float)]
    return None if all(map(math.isfinite, numbers)) else "a constant that is not finite"


def integer_matmul(op: Op, graph: RecordedGraph) -> str | None:
    """aws-neuron-sdk, compiler/error-codes/EVRF035.rst."""
    integers = op.name in ("mm", "bmm", "addmm") and not op.outputs[0].dtype.is_floating_point
    return "a product of integer matrices" if integers else None


def argmax(op: Op, graph: RecordedGraph) -> str | None:
    """torch-mlir, DecomposeComplexOps.cpp: argmax is max with places; aws-neuron-sdk, release
    notes of JAX NeuronX, known issues: variadic reductions are not supported.
    """
    return "values are reduced together with their places" if op.name == "argmax" else None


def single_numbers(op: Op, graph: RecordedGraph) -> str | None:
    """torch-neuronx, docs/decompositions.md: index_copy is a scatter with an index a number."""
    return "becomes a scatter of single numbers" if op.name == "index_copy" else None


def in_place(op: Op, graph: RecordedGraph) -> str | None:
    """torch-neuronx, neuron_dynamo_backend: inputs that a graph writes are kept in place.

    A cache that is reassigned is another tensor for TorchNeuron, and the old one stays.
    """
    if op.name not in WRITES or op.inputs[0].kind != "state":
        return None
    kept = op.outputs[0].storage == op.inputs[0].storage
    return None if kept else "writes a copy of the whole cache"


RULES: tuple[Rule, ...] = (
    known,
    top_k_shape,
    top_k_width,
    top_k_type,
    variadic,
    shift,
    integers,
    integer_matmul,
    scatter_window,
    gather_shape,
    types,
    finite,
)
_NATIVE_RULES: tuple[Rule, ...] = (argmax, single_numbers, in_place)
"""Rules for graphs of native PyTorch (trn2, trn3) beside those above. The compiler behind both ways
is the same. What differs stands before it: TorchNeuron and torch-mlir lower torch's operations,
where the PyTorch/XLA packages replaced some of them by calls of their own.
"""


def rules_of(target: str) -> tuple[Rule, ...]:
    """The rules for the graphs of a Neuron target."""
    return (*RULES, *_NATIVE_RULES) if target in NATIVE else RULES
