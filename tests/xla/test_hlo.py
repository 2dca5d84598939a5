"""What torch_xla makes of every kind of bucket: operations, types, aliasable state, and the same
results.

Sizes are small. On Neuron top-k and argmax are calls of AWS's own kernels; here they are a sort and
a reduction of two operands. What the compiler takes at real size is in
tests/compile/test_graph_rules.py.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

os.environ["PJRT_DEVICE"] = "CPU"
pytest.importorskip("torch_xla", reason="torch_xla is not installed: `make test-xla` runs these")

import torch_xla  # type: ignore[import-not-found]
from torch_xla.debug import metrics  # type: ignore[import-not-found]

from inference.model.graphs.round_graph import idle_inputs
from inference.model.graphs.verify_graph import VerifyGraph, copy_inputs
from tests.support.buckets import CASES, ROUND_CASES, Case, RoundCase, state_of

# fmt: off
ALLOWED = frozenset({
    "add", "and", "broadcast", "compare", "concatenate", "constant", "convert", "divide", "dot",
    "exponential", "floor", "gather", "get-tuple-element", "iota", "log", "logistic", "maximum",
    "minimum", "multiply", "negate", "or", "parameter", "reduce", "reduce-window", "reshape",
    "rsqrt", "scatter", "select", "shift-left", "shift-right-arithmetic", "slice", "sort",
    "subtract", "transpose", "tuple", "xor",
})
# fmt: on
WIDE = (
    r"s64\[\] constant\([01]\)",  # of comparisons with a number
    r"f32\[\] convert\(s64\[\] ",
    r"s64\[\d+\]\{0\} convert\(s32\[\d+\]\{0\} ",  # top_k > 0, and places in the caches >= 0
    r"s64\[\d+\]\{0\} broadcast\(s64\[\] ",
    r"pred\[\d+\]\{0\} compare\(s64\[\d+\]\{0\} ",
    # the indices of argmax and topk, widened and narrowed
    r"s64\[[\d,]+\]\{[\d,]+\} convert\(s32\[",
    r"s32\[[\d,]+\]\{[\d,]+\} convert\(s64\[",
)
"""Every instruction with a 64-bit type that is tolerated; Neuron makes them 32 bits wide."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


@dataclass(frozen=True)
class Hlo:
    """A graph as torch_xla lowers it. fallbacks: operations that ran on the host"""

    text: str
    opcodes: Counter[str]
    fallbacks: list[str]
    results: list[Tensor]


def results_of(graph: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What a call returns, and the state that the graph reassigns."""
    with torch.no_grad():
        returned = graph(**inputs)
    outputs = [returned] if isinstance(returned, Tensor) else [*returned]
    state = () if isinstance(graph, VerifyGraph) else state_of(graph)
    return [*outputs, *(graph.get_buffer(name) for name in state)]


def lower(graph: nn.Module, inputs: dict[str, Tensor]) -> Hlo:
    """Call the graph once on the device. Results come after a sync, else they may be wrong."""
    device = torch_xla.device()
    graph, inputs = graph.to(device), {name: tensor.to(device) for name, tensor in inputs.items()}
    torch_xla.sync()
    metrics.clear_all()
    results = results_of(graph, inputs)
    text: str = torch_xla._XLAC._get_xla_tensors_hlo(results)
    fallbacks = [name for name in metrics.counter_names() if name.startswith("aten::")]
    torch_xla.sync()
    opcodes = Counter(
        re.findall(r"^\s*(?:ROOT )?%[\w.-]+ = (?:\([^)]*\)|\S+) ([\w-]+)\(", text, re.MULTILINE)
    )
    return Hlo(text, opcodes, fallbacks, [result.cpu() for result in results])


# a CPU's own graph places rules by scatter, with 64-bit indices
LOWERED = [case for case in CASES if case.stateful or not case.masked]


@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_a_bucket_lowers_to_allowed_operations_and_equals_eager(case: Case) -> None:
    expected = results_of(case.graph(), case.inputs(0))
    found = lower(case.graph(), case.inputs(0))
    check_text(found, case)
    tolerance = TOLERANCE[case.dtype]
    wrong = found.results[0] != expected[0]
    if case.masked:  # behind the choice are log-probabilities, and ids of which many tie
        wrong = wrong[..., 0]
    assert wrong.sum() <= int(case.dtype == torch.bfloat16)
    for one, other in zip(found.results[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_copying_a_row_lowers_to_a_gather_and_a_scatter_a_cache_and_equals_eager() -> None:
    case = Case(stateful=True, sampled=False, nodes=2, rows=2)
    before = case.graph().cache().tensors
    found = lower(case.graph(), copy_inputs(1, 0))
    assert found.fallbacks == []
    assert found.opcodes.keys() <= ALLOWED
    assert found.opcodes["gather"] == found.opcodes["scatter"] == len(before)
    for moved, cache in zip(found.results[1:], before, strict=True):
        assert moved.equal(cache[[1, 1, 2]])


def check_rules(found: Hlo, sorts: int, scatters: int) -> None:
    """Nothing runs on the host, no other operation, a sort for each top-k, 32 bits, one shape."""
    assert found.fallbacks == []
    assert found.opcodes.keys() <= ALLOWED
    assert (found.opcodes["scatter"], found.opcodes["sort"]) == (scatters, sorts)
    assert "<=" not in found.text  # as bounded, dynamic sizes are written
    wide = re.findall(r"^.*\b(?:[su]64|f64|c64)\[.*$", found.text, re.MULTILINE)
    tolerated = re.compile("= (?:" + "|".join(WIDE) + ")|HloModule")
    assert [line.strip() for line in wide if not tolerated.search(line)] == []


def check_text(found: Hlo, case: Case) -> None:
    """Those rules, one top-k, and the inputs as parameters."""
    scatters = len(state_of(case.graph()))
    check_rules(found, int(case.sampled), scatters)
    assert found.text.count("update_window_dims={1}") == scatters  # a node's keys are one window
    for name, tensor in case.inputs(0).items():
        shape = f"[{','.join(map(str, tensor.shape))}]"
        kind = "f32" if tensor.is_floating_point() else "s32"
        used = name != ("seed" if case.stateful else "slots")  # noise is a stateful graph's state
        assert not used or re.search(rf"= {kind}{re.escape(shape)}\S* parameter\(", found.text), (
            name
        )


# --- rounds


@pytest.mark.parametrize("case", [case for case in ROUND_CASES if case.stateful], ids=str)
def test_a_round_and_its_draft_alone_lower_to_allowed_operations_and_equal_eager(
    case: RoundCase,
) -> None:
    levels, tolerance = len(case.branches), TOLERANCE[case.dtype]
    answer, *caches = results_of(case.graph(), case.inputs(0))
    found = lower(case.graph(), case.inputs(0))
    check_rules(found, 2 * levels + 1 if case.sampled else levels, len(caches))
    if found.results[0].equal(answer):  # else a near-tie of bfloat16: everything is another
        for one, cache in zip(found.results[1:], caches, strict=True):
            torch.testing.assert_close(one, cache, atol=tolerance, rtol=tolerance)
    else:
        assert case.dtype == torch.bfloat16
    if case.sampled:
        check_rules(lower(case.graph(), idle_inputs(case.draft_bucket)), 0, len(caches))
