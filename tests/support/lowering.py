"""Proof that a bucket's graph compiles for accelerators: exported, translated by a small table into
jax, compiled by XLA on the CPU.

TABLE is the contract of allowed operations: a graph with any other is refused, so an operation is
added on purpose or not at all. 64-bit integers become 32-bit ones here, as on Neuron. That
neuronx-cc accepts the result is not proven; the rules behind the checks are those it is known for.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

from inference.artifact import Bucket
from inference.errors import OutriderError
from inference.model.noise_window import NoisePlace, fill_inputs
from inference.model.round_graph import RoundGraph, StatefulRoundGraph
from inference.model.verify_graph import StatefulGraph, VerifyGraph, copy_inputs, example_inputs
from tests.support.buckets import state_of

aten = torch.ops.aten
Arrays = dict[str, Any]  # name -> jax array


class NotLowerable(OutriderError, ValueError):
    """A graph that breaks the rules of compiled graphs; the message names the operation."""


DTYPES = {
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int32,
    torch.bool: jnp.bool_,
}


def _slice(
    x: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    first, last, step = slice(start, end, step).indices(x.shape[axis])
    return lax.slice_in_dim(x, first, last, step, axis)


def _expand(x: Any, sizes: Sequence[int]) -> Any:
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return jnp.broadcast_to(
        x, [mine if size == -1 else size for size, mine in zip(sizes, own, strict=True)]
    )


def _index_put(x: Any, index: Sequence[Any], source: Any) -> Any:
    if len(index) != 1:
        raise NotLowerable("index_put along several axes: only whole runs of the first are written")
    return x.at[index[0]].set(source, mode="promise_in_bounds")


def _take(x: Any, axis: int, index: Any) -> Any:
    return x.at[(slice(None),) * (axis % x.ndim) + (index,)].get(mode="promise_in_bounds")


def _top_k(x: Any, count: int, axis: int = -1) -> Any:
    if axis % x.ndim != x.ndim - 1:
        raise NotLowerable(f"topk along axis {axis} of {x.ndim}: only the last is allowed")
    return lax.top_k(x, count)


TABLE: Mapping[Any, Callable[..., Any]] = {
    # arithmetic
    aten.add.Tensor: lambda a, b: a + b,
    aten.sub.Tensor: lambda a, b: a - b,
    aten.mul.Tensor: lambda a, b: a * b,
    aten.div.Tensor: lambda a, b: a / b,
    aten.neg.default: lambda x: -x,
    aten.exp.default: jnp.exp,
    aten.log.default: jnp.log,
    aten.rsqrt.default: lax.rsqrt,
    aten.sigmoid.default: jax.nn.sigmoid,
    aten.maximum.default: jnp.maximum,
    aten.minimum.default: jnp.minimum,
    aten.mm.default: jnp.matmul,
    aten.bmm.default: jnp.matmul,
    aten.addmm.default: lambda bias, a, b: bias + a @ b,
    # comparisons
    aten.eq.Tensor: lambda a, b: a == b,
    aten.eq.Scalar: lambda a, b: a == b,
    aten.ge.Tensor: lambda a, b: a >= b,
    aten.gt.Scalar: lambda a, b: a > b,
    aten.lt.Scalar: lambda a, b: a < b,
    aten.lt.Tensor: lambda a, b: a < b,
    aten.where.self: jnp.where,
    # bits, of the noise and of masks
    aten.bitwise_and.Scalar: lambda a, b: a & b,
    aten.bitwise_and.Tensor: lambda a, b: a & b,
    aten.bitwise_or.Tensor: lambda a, b: a | b,
    aten.bitwise_xor.Scalar: lambda a, b: a ^ b,
    aten.bitwise_xor.Tensor: lambda a, b: a ^ b,
    aten.bitwise_left_shift.Tensor: lambda a, b: a << b,
    aten.bitwise_right_shift.Tensor: lambda a, b: (
        a >> b
    ),  # never a >> number, which torch_xla makes a division
    # reductions
    aten.amax.default: lambda x, axes, keep=False: jnp.max(x, tuple(axes), keepdims=keep),
    aten.amin.default: lambda x, axes, keep=False: jnp.min(x, tuple(axes), keepdims=keep),
    aten.sum.dim_IntList: lambda x, axes, keep=False: jnp.sum(x, tuple(axes), keepdims=keep),
    aten.mean.dim: lambda x, axes, keep=False: jnp.mean(x, tuple(axes), keepdims=keep),
    aten.argmax.default: lambda x, axis: lax.argmax(x, axis % x.ndim, np.int32),
    # needed by the nucleus of sampled graphs, and only there: cumulative mass, and the one sort
    # (Neuron has an operator of its own)
    aten.cumsum.default: lambda x, axis: lax.cumsum(x, axis % x.ndim),
    aten.topk.default: _top_k,
    operator.getitem: operator.getitem,
    # shapes
    aten.view.default: jnp.reshape,
    aten.permute.default: jnp.transpose,
    aten.expand.default: _expand,
    aten.unsqueeze.default: jnp.expand_dims,
    aten.slice.Tensor: _slice,
    aten.select.int: lambda x, axis, index: lax.index_in_dim(x, index, axis, keepdims=False),
    aten.cat.default: lambda parts, axis=0: jnp.concatenate(parts, axis),
    aten.clone.default: lambda x: x,
    # reading and writing by index
    aten.embedding.default: lambda table, index: _take(table, 0, index),
    aten.index_select.default: _take,
    aten.gather.default: lambda x, axis, index: jnp.take_along_axis(
        x, index, axis, mode="promise_in_bounds"
    ),
    aten.index_put.default: _index_put,
    # constants and types
    aten.arange.start_step: lambda start, end, step=1, dtype=None: jnp.arange(
        start, end, step, dtype=DTYPES[dtype]
    ),
    aten.full_like.default: lambda x, value, dtype=None: jnp.full_like(
        x, value, dtype and DTYPES[dtype]
    ),
    aten.scalar_tensor.default: lambda value, dtype: jnp.asarray(value, DTYPES[dtype]),
    aten._to_copy.default: lambda x, dtype=None: x if dtype is None else x.astype(DTYPES[dtype]),
    aten._assert_tensor_metadata.default: lambda *_, **__: (
        None
    ),  # of the export itself; nothing at run time
}

PLACEMENT = frozenset(("device", "layout", "memory_format", "non_blocking", "pin_memory"))
"""Arguments about where and how a tensor lies, which XLA decides."""

WIDE = (aten.argmax.default, aten.topk.default)
"""The operations whose 64-bit results are tolerated, provided that the next thing done with them
is a cast to int32.
"""

# fmt: off
STABLEHLO = frozenset({
    "add", "and", "broadcast_in_dim", "compare", "concatenate", "constant", "convert", "divide",
    "dot_general", "exponential", "gather", "iota", "log", "maximum", "minimum", "multiply",
    "negate", "or", "reduce", "reduce_window", "reshape", "rsqrt", "scatter", "select",
    "shift_left", "shift_right_arithmetic", "slice", "subtract", "top_k", "transpose", "xor",
})
# fmt: on
"""What the table may become. No while, sort, random numbers, custom calls, dynamic slices or
shapes.
"""


@dataclass(frozen=True)
class Lowered:
    """function(constants, state, inputs) -> (outputs, new state), and the constants and state it
    starts from.
    """

    function: Callable[[Arrays, Arrays, Arrays], tuple[tuple[Any, ...], Arrays]]
    constants: Arrays
    state: Arrays


@dataclass(frozen=True)
class Report:
    """What XLA made of a graph. operations: StableHLO operation -> count; flops: as XLA
    estimates them, None where it does not.
    """

    operations: Mapping[str, int]
    text: str
    state_bytes: int
    aliased_outputs: int
    aliased_bytes: int
    flops: float | None


class Proof:
    """A compiled graph that runs on XLA's CPU backend and carries its state from call to call,
    donated each time.
    """

    def __init__(self, report: Report, lowered: Lowered, executable: Any) -> None:
        self.report = report
        self._constants, self._state, self._executable = (
            lowered.constants,
            lowered.state,
            executable,
        )

    def __call__(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        outputs, self._state = self._executable(self._constants, self._state, _arrays(inputs))
        return tuple(_to_torch(output) for output in outputs)

    def hold(self, buffers: Mapping[str, Tensor]) -> None:
        """Replaces buffers that the graph only reads, as the caller of a VerifyGraph writes its
        caches between calls.
        """
        self._constants = self._constants | _arrays(buffers)

    @property
    def state(self) -> dict[str, Tensor]:
        return {name: _to_torch(array) for name, array in self._state.items()}


def prove(graph: VerifyGraph | StatefulGraph, bucket: Bucket) -> Proof:
    """Compiles the graph for this bucket; raises NotLowerable naming what an accelerator would
    not take.
    """
    program = export(graph, example_inputs(bucket))
    return compile_program(
        program,
        example_inputs(bucket),
        state=state_of(graph),
    )


def prove_fused(graph: RoundGraph | StatefulRoundGraph, inputs: Mapping[str, Tensor]) -> Proof:
    """The same for a graph of both models, for inputs of these shapes: a round, or one of the
    models alone.
    """
    return compile_program(export(graph, inputs), inputs, state=state_of(graph))


def prove_copying(graph: StatefulGraph) -> Proof:
    """The same for the graph that copies rows of its caches."""
    inputs = copy_inputs()
    return compile_program(export(graph, inputs), inputs, state=state_of(graph))


def prove_filling(graph: StatefulGraph) -> Proof:
    """The same for the graph that makes noise."""
    inputs = fill_inputs([NoisePlace(0, 0, 0)])
    return compile_program(export(graph, inputs), inputs, state=state_of(graph))


def compile_program(
    program: ExportedProgram, inputs: Mapping[str, Tensor], state: tuple[str, ...]
) -> Proof:
    """The program through the table and XLA, with every buffer of `state` donated and aliased."""
    lowered = lower(program, state)
    staged = jax.jit(lowered.function, donate_argnums=1).lower(
        lowered.constants, lowered.state, _arrays(inputs)
    )
    module: Any = staged.compiler_ir("stablehlo")
    operations = _operations(module.operation)
    executable = staged.compile()
    memory: Any = executable.memory_analysis()
    text = staged.as_text()
    report = Report(
        operations=operations,
        text=text,
        state_bytes=sum(array.nbytes for array in lowered.state.values()),
        aliased_outputs=text.count("tf.aliasing_output"),
        aliased_bytes=memory.alias_size_in_bytes,
        flops=(executable.cost_analysis() or {}).get("flops"),
    )
    if report.aliased_outputs != len(state) or report.aliased_bytes != report.state_bytes:
        raise NotLowerable(
            f"XLA aliases {report.aliased_outputs} buffers, {report.aliased_bytes} bytes, of "
            f"{len(state)}, {report.state_bytes} bytes"
        )
    return Proof(report, lowered, executable)


def export(graph: torch.nn.Module, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """The graph in core operations. strict=False: strict export silently drops buffers that are
    reassigned.
    """
    with torch.no_grad():
        try:
            program: ExportedProgram = torch.export.export(
                graph, (), dict(inputs), strict=False
            ).run_decompositions()
            return program
        except RuntimeError as error:  # of which every refusal of a data-dependent branch is one
            raise NotLowerable(
                f"torch.export refuses the graph: {str(error).strip().splitlines()[0]}"
            ) from error


def lower(program: ExportedProgram, state: tuple[str, ...]) -> Lowered:
    """The program as a jax function. state: the buffers that it must change, all and no others."""
    _check_state(program, state)
    for node in program.graph.nodes:
        _check_node(node)
    tensors = {**program.state_dict, **program.constants}
    targets = [
        spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT
    ]
    arrays = _arrays({target: tensors[target] for target in targets if target is not None})

    def function(
        constants: Arrays, state: Arrays, inputs: Arrays
    ) -> tuple[tuple[Any, ...], Arrays]:
        return _interpret(program, {**constants, **state}, inputs)

    return Lowered(
        function,
        {name: arrays[name] for name in arrays if name not in state},
        {name: arrays[name] for name in state},
    )


def _check_state(program: ExportedProgram, state: tuple[str, ...]) -> None:
    changed = [
        spec.target
        for spec in program.graph_signature.output_specs
        if spec.kind != OutputKind.USER_OUTPUT
    ]
    if sorted(map(str, changed)) != sorted(state):
        raise NotLowerable(
            f"the graph changes the buffers {changed}, and must change {list(state)}"
        )


def _check_node(node: Node) -> None:
    """One node of the exported program against the table and the rules that hold before
    compilation.
    """
    if node.op == "call_function" and node.target not in TABLE:
        raise NotLowerable(
            f"{node.target} is not in the table of allowed operations (tests/support/lowering.py)"
        )
    if any(isinstance(arg, float) and not math.isfinite(arg) for arg in node.args):
        raise NotLowerable(
            f"{node.target} has the constant {node.args}: accelerators fail on infinities"
        )
    value = node.meta.get("val")
    for tensor in value if isinstance(value, (tuple, list)) else (value,):
        if not isinstance(tensor, Tensor):
            continue
        if not all(isinstance(size, int) for size in tensor.shape):
            raise NotLowerable(f"{node.target} has a dynamic shape: {tuple(tensor.shape)}")
        if tensor.dtype not in DTYPES or (tensor.dtype == torch.int64 and not _tolerated(node)):
            raise NotLowerable(
                f"{node.target} makes {tensor.dtype}: use "
                f"{', '.join(str(dtype) for dtype in DTYPES if dtype != torch.int64)}"
            )


def _tolerated(node: Node) -> bool:
    """Whether a 64-bit result comes from WIDE and is only cast to int32."""
    source = node.args[0] if node.target == operator.getitem else node
    passing = (operator.getitem, aten._assert_tensor_metadata.default)
    cast = all(
        user.target in passing or user.kwargs.get("dtype") == torch.int32 for user in node.users
    )
    return isinstance(source, Node) and source.target in WIDE and cast


def _interpret(
    program: ExportedProgram, named: Arrays, inputs: Arrays
) -> tuple[tuple[Any, ...], Arrays]:
    """Runs the exported graph with the table's functions, on jax arrays or tracers."""
    values: dict[Node, Any] = {}
    signature = program.graph_signature
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    for node, entry in zip(placeholders, signature.input_specs, strict=True):
        values[node] = (
            inputs[entry.arg.name]
            if entry.kind == InputKind.USER_INPUT
            else named[str(entry.target)]
        )
    for node in program.graph.nodes:
        if node.op == "call_function":
            args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            values[node] = TABLE[node.target](
                *args, **{name: kwargs[name] for name in kwargs if name not in PLACEMENT}
            )
    results = [values[node] for node in program.graph.output_node().args[0]]
    kinds = [entry.kind for entry in signature.output_specs]
    outputs = tuple(
        result
        for result, kind in zip(results, kinds, strict=True)
        if kind == OutputKind.USER_OUTPUT
    )
    state = {
        str(entry.target): result
        for result, entry in zip(results, signature.output_specs, strict=True)
        if entry.kind != OutputKind.USER_OUTPUT
    }
    return outputs, state


def _operations(module: Any) -> Counter[str]:
    """StableHLO operations and how often they occur; raises NotLowerable on one that is not in
    STABLEHLO, is 64 bits wide or dynamic.
    """
    found: Counter[str] = Counter()
    for operation in _walk(module):
        dialect, name = operation.name.split(".", 1)
        if dialect in ("builtin", "func") or name == "return":
            continue
        if name not in STABLEHLO:
            raise NotLowerable(
                f"XLA needs {operation.name}, which is not an allowed operation "
                "(tests/support/lowering.py)"
            )
        for result in operation.results:
            if any(mark in str(result.type) for mark in ("i64", "f64", "?")):
                raise NotLowerable(f"{operation.name} makes {result.type}")
        found[name] += 1
    return found


def _walk(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _walk(inner.operation)


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """On XLA's CPU device, always as copies: what is donated must not be torch's memory."""
    return {name: _to_jax(tensor.detach()) for name, tensor in tensors.items()}


def _to_jax(tensor: Tensor) -> Any:
    if tensor.dtype not in DTYPES:
        raise NotLowerable(f"a tensor of {tensor.dtype} cannot enter a compiled graph")
    plain = tensor.float() if tensor.is_floating_point() else tensor  # numpy has no bfloat16
    return jnp.array(plain.numpy(), dtype=DTYPES[tensor.dtype], copy=True)


def _to_torch(array: Any) -> Tensor:
    wide = np.array(array, dtype=np.float32) if array.dtype == jnp.bfloat16 else np.array(array)
    return torch.from_numpy(wide)
