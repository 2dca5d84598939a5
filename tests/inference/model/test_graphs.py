"""Graphs compute exported what they compute eagerly, and change the slots of their call alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from compile.agreement import random_segments
from compile.spec import prefill_bucket, verify_bucket
from inference.backends.graphs.graph_calls import inputs_of, unstacked
from inference.files.artifact import Bucket
from inference.model.cache import KeysValues, empty_cache, write_slots
from inference.model.choice.graph_choice import Scored, empty_window
from inference.model.decoder import Decoder
from inference.model.graphs.verify_graph import (
    StatefulGraph,
    VerifyGraph,
    copy_inputs,
    example_inputs,
)
from tests.support import buckets
from tests.support.buckets import fill, state_of
from tests.support.models import tiny_decoder

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


ROWS, JUNK, VOCABULARY = 5, 40, 61
BUCKETS = [
    verify_bucket(1, 1, 24, JUNK, sampled=False),
    verify_bucket(1, 8, JUNK, JUNK, sampled=True),
    verify_bucket(3, 4, JUNK, JUNK, sampled=True),
    prefill_bucket(1, 16, JUNK, JUNK),
]


def noise(decoder: Decoder, dtype: torch.dtype = torch.float32) -> KeysValues:
    """Full caches, always the same."""
    generator = torch.Generator().manual_seed(3)
    cache = empty_cache(decoder.config, ROWS, JUNK, dtype)
    return KeysValues.of(part.normal_(generator=generator) for part in cache.tensors)


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
@torch.no_grad()
def test_a_graph_writes_the_slots_of_its_call_and_no_other_bit(bucket: Bucket) -> None:
    decoder = tiny_decoder()
    for seed in range(4):  # trees in distinct rows and slots
        graph = StatefulGraph(decoder, noise(decoder), empty_window(ROWS, VOCABULARY))
        inputs = inputs_of(bucket, random_segments(bucket, VOCABULARY, ROWS, 200, seed))
        fill(graph, inputs)
        before = KeysValues.of(held.clone() for held in graph.cache().tensors)
        chosen = graph(**inputs)
        named = torch.zeros(ROWS, JUNK + 1, dtype=torch.bool)
        named[inputs["rows"][:, None].long(), inputs["slots"].long()] = True
        for old, new in zip(before.tensors, graph.cache().tensors, strict=True):
            assert ((old != new).any(-1) == named).all()
        plain = VerifyGraph(decoder, before, bucket.levels)
        expected, *made = plain(**inputs)
        write_slots(before, inputs["rows"], inputs["slots"], unstacked(*made))
        assert chosen.equal(expected)
        for ours, theirs in zip(graph.cache().tensors, before.tensors, strict=True):
            assert ours.equal(theirs)


@torch.no_grad()
def test_a_copied_row_is_its_source_and_the_others_stay() -> None:
    decoder = tiny_decoder()
    before, graph = noise(decoder), StatefulGraph(decoder, noise(decoder), None)
    graph(**copy_inputs(3, 1))
    for old, new in zip(before.tensors, graph.cache().tensors, strict=True):
        assert new.equal(old[[0, 3, 2, 3, 4]])


@pytest.mark.parametrize(("dtype", "widened"), [(torch.bfloat16, 0), (torch.float32, 4)], ids=str)
def test_a_cache_is_read_in_its_own_type(dtype: torch.dtype, widened: int) -> None:
    bucket = verify_bucket(1, 4, JUNK, JUNK, sampled=False)
    decoder = tiny_decoder().to(dtype)
    program = exported(VerifyGraph(decoder, noise(decoder, dtype), 1), example_inputs(bucket))
    width = decoder.config.kv_heads * decoder.config.head_dim
    views = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.target == torch.ops.aten.view.default
    ]
    wide = [view for view in views if view.dtype == torch.float32 and view.dim() == 4]
    assert sum(view.numel() == JUNK * width for view in wide) == widened
