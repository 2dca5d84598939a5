"""Bounds of the integers in a graph, from the bounds of its inputs, operation by operation.

A bound is an interval that holds every value of a tensor. What is not followed may be any 32-bit
integer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from compile.ops.recording import Op, Recording, Value


class Range(NamedTuple):
    """The least and the greatest value, both included."""

    least: int
    most: int

    @property
    def size(self) -> int:
        """The greatest absolute value."""
        return max(abs(self.least), abs(self.most))


WORD = Range(-(2**31), 2**31 - 1)
COUNT = Range(0, 2**20 - 1)
WORDS = ("seed",)
"""Inputs, by name, that carry any 32 bits. All other integer inputs are ids, counts or places."""

_FLAG = Range(0, 1)
_COMPARING = frozenset(("eq", "ne", "gt", "ge", "lt", "le", "logical_and", "logical_not", "isnan"))
# fmt: off
_PASSING = frozenset((
    "view", "_unsafe_view", "reshape", "expand", "t", "transpose", "permute", "slice", "select",
    "unsqueeze", "squeeze", "clone", "_to_copy", "gather", "index_select", "embedding", "index",
    "amax", "amin", "cat", "stack", "where", "full_like", "maximum", "minimum", "repeat", "copy",
    "split", "split_with_sizes", "scatter", "index_put", "index_copy", "slice_scatter",
    "all_gather", "unbind", "flip",
))
# fmt: on
"""Operations whose results are values that went in."""


def ranges(recording: Recording) -> Mapping[int, Range]:
    """The bounds of every integer tensor of a recording, by its number. A result of arithmetic is
    bounded as it would be without wrapping, so it may lie beyond 32 bits.
    """
    found = dict(_looked_up(recording))
    for op in recording.ops:
        for value in op.inputs:
            found.setdefault(value.number, _given(value))
        if not op.outputs[0].dtype.is_floating_point or op.name in ("topk", "max", "min"):
            result = _result(op, found)
            for out in op.outputs:
                found[out.number] = result
    return found


def _looked_up(recording: Recording) -> Iterator[tuple[int, Range]]:
    """The bounds of inputs by which parts of a tensor are read: they name parts that it has."""
    for op in recording.ops:
        if op.name == "index_select":
            source, axis, index = op.arguments
            if index.kind == "input":
                yield index.number, Range(0, source.shape[axis] - 1)


def _given(value: Value) -> Range:
    if value.dtype.is_floating_point:
        return WORD
    if value.dtype.itemsize == 1:
        return _FLAG
    return COUNT if value.kind == "input" and value.name not in WORDS else WORD


def _result(op: Op, found: Mapping[int, Range]) -> Range:
    if op.name in _COMPARING:
        return _FLAG
    if op.name in ("argmax", "argmin", "topk", "sort", "max", "min"):
        return Range(0, max(max(op.inputs[0].shape, default=1) - 1, 0))
    if op.name == "arange":
        ends = [int(end) for end in op.arguments if isinstance(end, int | float)] or [0]
        return Range(min(0, *ends), max(0, *ends))
    if op.name in ("scalar_tensor", "full", "full_like"):
        return _of(op.arguments[-1], found)
    if op.name == "zeros_like":
        return Range(0, 0)
    if op.name in _PASSING:
        return _union(op, found)
    rule = _RULES.get(op.name)
    if rule is None or len(op.arguments) < 2:
        return WORD
    return rule(_wrapped(_of(op.arguments[0], found)), _wrapped(_of(op.arguments[1], found)))


def _of(argument: Any, found: Mapping[int, Range]) -> Range:
    """The bounds of an argument: a tensor or a number."""
    if isinstance(argument, Value):
        return WORD if argument.dtype.is_floating_point else found[argument.number]
    return Range(int(argument), int(argument)) if isinstance(argument, int) else WORD


def _union(op: Op, found: Mapping[int, Range]) -> Range:
    """The values that can pass: of the source of a look-up, of every part of a sum or choice."""
    values = list(op.inputs)
    if op.name in ("gather", "index_select", "embedding", "index"):
        values = values[:1]
    if op.name == "where":
        values = values[1:]
    parts = [_of(value, found) for value in values]
    if op.name == "where":
        parts += [_of(a, found) for a in op.arguments[1:] if not isinstance(a, Value)]
    return Range(min(part.least for part in parts), max(part.most for part in parts))


def _wrapped(bounds: Range) -> Range:
    """The bounds where 32 bits hold them, else those of any 32-bit word."""
    inside = WORD.least <= bounds.least and bounds.most <= WORD.most
    return bounds if inside else WORD


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Bounds of a function that is monotonic in either argument."""

    def bounds(a: Range, b: Range) -> Range:
        ends = [function(one, other) for one in a for other in b]
        return Range(min(ends), max(ends))

    return bounds


def _and(a: Range, b: Range) -> Range:
    masks = [bounds.most for bounds in (a, b) if bounds.least >= 0]
    return Range(0, min(masks)) if masks else WORD


def _or(a: Range, b: Range) -> Range:
    """Also of exclusive or: no more bits than either has."""
    if a.least < 0 or b.least < 0:
        return WORD
    return Range(0, (1 << max(a.most, b.most).bit_length()) - 1)


def _shifted(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """A shift by 0 to 31 bits; by another number nothing is known."""
    corners = _corners(function)
    return lambda a, b: corners(a, b) if b.least >= 0 and b.most < 32 else WORD


_RULES: Mapping[str, Callable[[Range, Range], Range]] = {
    "add": _corners(operator.add),
    "sub": _corners(operator.sub),
    "rsub": _corners(lambda a, b: b - a),
    "mul": _corners(operator.mul),
    "bitwise_and": _and,
    "__and__": _and,
    "bitwise_or": _or,
    "bitwise_xor": _or,
    "bitwise_left_shift": _shifted(operator.lshift),
    "bitwise_right_shift": _shifted(operator.rshift),
    "__lshift__": _shifted(operator.lshift),
    "__rshift__": _shifted(operator.rshift),
}
