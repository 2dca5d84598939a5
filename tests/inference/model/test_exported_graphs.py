"""Graphs export whole, compute exported what they compute eagerly, and change their own state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from inference.model.choice.graph_choice import Scored
from inference.model.graphs.verify_graph import example_inputs
from tests.support import buckets
from tests.support.buckets import state_of

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


def exported(graph: nn.Module, inputs: dict[str, Tensor]) -> ExportedProgram:
    """The graph in core operations. Strict export drops buffers that are reassigned."""
    with torch.no_grad():
        whole = torch.export.export(graph, (), inputs, strict=False)
        program: ExportedProgram = whole.run_decompositions()
        return program


def returned(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a graph chose, then log-probabilities where it is masked, then all else."""
    first, *others = (results,) if isinstance(results, Tensor) else results
    if first.dim() < 3:
        return first, *others
    scored = Scored.parted(first)
    return scored.chosen, scored.scores.values, scored.scores.likeliest, *others


EVERY_TIME = [*buckets.VARIED, *(case for case in buckets.ROUND_CASES if case.sampled)]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in EVERY_TIME else pytest.mark.extended, id=str(case))
        for case in (*buckets.CASES, *buckets.ROUND_CASES)
    ],
)
@torch.no_grad()
def test_an_exported_graph_computes_the_same(case: buckets.Case | buckets.RoundCase) -> None:
    """In bfloat16 one choice may fall to a neighbour."""
    graph, program = case.graph(), exported(case.graph(), case.inputs(0))
    assert not program.range_constraints
    assert sorted(program.graph_signature.buffers_to_mutate.values()) == sorted(state_of(graph))
    module: Any = program.module()
    for call in (0, 1):
        inputs = case.inputs(call)
        chosen, *states = returned(module(**inputs))
        expected, *theirs = returned(graph(**inputs))
        assert chosen.dtype == torch.int32
        assert (chosen != expected).sum() <= int(case.dtype == torch.bfloat16)
        states += [module.get_buffer(name) for name in state_of(graph)]
        theirs += [graph.get_buffer(name) for name in state_of(graph)]
        if chosen.equal(expected):
            near = TOLERANCE[case.dtype]
            torch.testing.assert_close(states, theirs, atol=near, rtol=near)


def test_no_value_of_a_call_is_part_of_its_graph() -> None:
    case = buckets.Case(stateful=True, sampled=False, nodes=8, rows=2)
    idle, call = example_inputs(case.bucket), case.inputs(0)
    busy = {name: call[name] for name in idle}
    first, second = (exported(case.graph(), each).graph_module.code for each in (idle, busy))
    assert first == second


@pytest.mark.parametrize("stateful", [True, False])
def test_every_layers_keys_and_values_are_read_by_row(stateful: bool) -> None:
    case = buckets.Case(stateful=stateful, sampled=True, nodes=2, rows=2)
    nodes = exported(case.graph(), example_inputs(case.bucket)).graph.nodes
    gathers = sum(node.target == torch.ops.aten.index_select.default for node in nodes)
    assert gathers == 2 + stateful  # one more names the windows of noise
