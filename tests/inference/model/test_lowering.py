"""Every kind of bucket lowers to the allowed operations, compiles with XLA, and computes there
what it computes eagerly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("jax", reason="jax, which brings XLA, is not installed: pip install '.[dev]'")

from inference.backends.graph_calls import unstacked
from inference.model.cache import write_slots
from inference.model.noise import noise
from inference.model.noise_window import WINDOW, NoisePlace, fill_inputs
from inference.model.sampler import Sampling
from inference.model.verify_graph import (
    StatefulGraph,
    VerifyGraph,
    copy_inputs,
    example_inputs,
)
from inference.sampling import SamplingParams
from tests.support.buckets import CASES, Case, state_of
from tests.support.lowering import (
    STABLEHLO,
    NotLowerable,
    Proof,
    compile_program,
    export,
    lower,
    prove,
    prove_copying,
    prove_filling,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


# --- every bucket
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bucket_compiles_and_equals_eager_over_two_calls(case: Case) -> None:
    graph, proof = case.graph(), prove(case.graph(), case.bucket)
    check_report(case, graph, proof)
    for call in (0, 1):
        if isinstance(graph, StatefulGraph):
            run_stateful(case, graph, proof, call)
        else:
            run_verify(case, graph, proof, call)


def check_report(case: Case, graph: VerifyGraph | StatefulGraph, proof: Proof) -> None:
    """One top-k where it is sampled, no other sort; caches aliased to the last byte where the
    graph holds them.
    """
    operations, state = proof.report.operations, [graph.get_buffer(n) for n in state_of(graph)]
    assert operations.keys() <= STABLEHLO
    assert operations.get("top_k", 0) == operations.get("reduce_window", 0) == int(case.sampled)
    assert (
        operations.get("scatter", 0)
        == proof.report.aliased_outputs
        == proof.report.text.count("tf.aliasing_output")
        == len(state)
    )
    assert proof.report.aliased_bytes == sum(buffer.nbytes for buffer in state)


def run_stateful(case: Case, graph: StatefulGraph, proof: Proof, call: int) -> None:
    inputs = case.inputs(call)
    with torch.no_grad():
        outputs = graph(**inputs)
    expected = outputs if case.kept else (outputs,)
    check_outputs(case, proof(inputs), expected)
    for name in state_of(graph):
        assert_close(case, proof.state[name], graph.get_buffer(name))


def run_verify(case: Case, graph: VerifyGraph, proof: Proof, call: int) -> None:
    inputs = case.inputs(call)
    with torch.no_grad():
        outputs = graph(**inputs)
    check_outputs(case, proof(inputs), outputs)
    _, keys, values, *_ = outputs
    write_slots(graph.cache(), inputs["rows"], inputs["slots"], unstacked(keys, values))
    proof.hold(dict(zip(graph.names(), graph.cache().tensors, strict=True)))


def check_outputs(case: Case, found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """What was chosen, then states: new keys and values, and features where layers are kept."""
    assert len(found) == len(expected)
    check_chosen(case, found[0], expected[0])
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert_close(case, ours, theirs)


def check_chosen(case: Case, found: Tensor, expected: Tensor) -> None:
    """In float32 every choice; in bfloat16 logits are rounded differently, and one choice may
    fall to a neighbour.
    """
    assert found.dtype == expected.dtype == torch.int32
    assert (found != expected).sum() <= int(case.dtype == torch.bfloat16)


def assert_close(case: Case, found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(found, expected.to(found.dtype), atol=tolerance, rtol=tolerance)


# --- copying rows
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_copying_a_row_compiles_and_moves_every_bit_of_it_and_no_other(dtype: torch.dtype) -> None:
    graph = Case(stateful=True, sampled=False, nodes=2, rows=3, dtype=dtype).graph()
    assert isinstance(graph, StatefulGraph)
    before = [cache.float() for cache in graph.cache().tensors]
    proof = prove_copying(graph)
    proof(copy_inputs(0, 1))
    for name, cache in zip(graph.names(), before, strict=True):
        assert proof.state[name].equal(cache[[0, 0, 2]])
    assert proof.report.operations["scatter"] == proof.report.aliased_outputs == len(before)
    assert proof.report.aliased_bytes == sum(cache.nbytes for cache in graph.cache().tensors)


# --- noise
# --------------------------------------------------------------------------------------------------


def test_making_noise_compiles_and_writes_the_named_places_with_the_contracts_noise() -> None:
    case = Case(stateful=True, sampled=True, nodes=8, rows=2)
    graph = case.graph()
    assert isinstance(graph, StatefulGraph)
    proof, places = prove_filling(graph), [NoisePlace(2, 65, 7), NoisePlace(0, 3, 2**40)]
    before, keys = proof.state["noise"].clone(), proof.state["keys_0"].clone()
    proof(fill_inputs(places))
    now, ids = proof.state["noise"], graph.decoder.token_ids()
    for place in places:
        seed = Sampling.of([SamplingParams(1.0, seed=place.seed)], torch.device("cpu")).seed
        at = place.row * WINDOW + place.position % WINDOW
        expected = noise(seed, torch.tensor([place.position], dtype=torch.int32), ids)
        torch.testing.assert_close(now[at], expected, atol=2e-5, rtol=0)
        before[at] = now[at]
    assert now.equal(before)
    assert proof.state["keys_0"][:, :-1].equal(keys[:, :-1])


# --- state and masks
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stateful", "changed"),
    [(False, []), (True, ["keys_0", "values_0"])],
    ids=["verify", "stateful"],
)
def test_a_graph_changes_its_caches_or_nothing(stateful: bool, changed: list[str]) -> None:
    case = Case(stateful=stateful, sampled=False, nodes=2)
    signature = export(case.graph(), example_inputs(case.bucket)).graph_signature
    assert sorted(signature.buffers_to_mutate.values()) == changed


def test_every_layers_keys_and_values_are_read_by_row() -> None:
    for stateful in (True, False):
        case = Case(stateful=stateful, sampled=True, nodes=2, rows=2)
        nodes = export(case.graph(), example_inputs(case.bucket)).graph.nodes
        gathers = sum(node.target == torch.ops.aten.index_select.default for node in nodes)
        assert gathers == 2 + stateful  # one more names the windows of noise


def test_no_stateful_graph_gathers_by_an_index_of_its_sources_shape() -> None:
    """AWS's compilers have got such gathers wrong."""
    for sampled in (False, True):
        case = Case(stateful=True, sampled=sampled, nodes=8, family="llama 290 ids")
        for node in export(case.graph(), example_inputs(case.bucket)).graph.nodes:
            if node.target == torch.ops.aten.gather.default:
                source, _, index = node.args
                assert source.meta["val"].shape != index.meta["val"].shape  # type: ignore[union-attr]


def test_a_nodes_keys_are_written_as_one_run_of_memory() -> None:
    """The scatter's windows are whole rows of the flat cache, not elements."""
    case = Case(stateful=True, sampled=False, nodes=8, rows=2)
    text, graph = prove(case.graph(), case.bucket).report.text, case.graph()
    width = graph.cache().keys[0].shape[2]
    scatters = re.findall(r"stablehlo.scatter.*?\}\) : \((.*?)\) ->", text, re.DOTALL)
    assert len(scatters) == 2
    for operands in scatters:
        assert operands.endswith(f"tensor<16x1xi32>, tensor<16x{width}xf32>")
    assert text.count("update_window_dims = [1]") == 2


def test_state_that_strict_export_drops_is_missed() -> None:
    case = Case(stateful=True, sampled=False, nodes=2)
    with torch.no_grad():
        program = torch.export.export(
            case.graph(), (), example_inputs(case.bucket), strict=True
        ).run_decompositions()
    with pytest.raises(NotLowerable, match=r"changes the buffers \[\], and must change"):
        lower(program, ("keys_0", "values_0"))


def test_state_that_nobody_asked_for_is_refused() -> None:
    case = Case(stateful=True, sampled=False, nodes=2)
    with pytest.raises(NotLowerable, match=r"must change \[\]"):
        lower(export(case.graph(), example_inputs(case.bucket)), ())


def test_masks_are_inputs_whose_values_the_text_does_not_hold() -> None:
    case = Case(stateful=True, sampled=False, nodes=8, rows=2)
    idle, busy = example_inputs(case.bucket), case.inputs(0)
    proofs = [
        compile_program(export(case.graph(), inputs), inputs, case.graph().names())
        for inputs in (idle, busy)
    ]
    assert proofs[0].report.text == proofs[1].report.text
    other = busy | {"context_mask": 1 - busy["context_mask"]}
    proofs[0](busy), proofs[1](other)
    assert (
        proofs[0].state["keys_0"].equal(proofs[1].state["keys_0"])
    )  # of the one layer, which the mask does not reach
    assert not proofs[0](busy)[0].equal(proofs[1](other)[0])


# --- what is refused
# --------------------------------------------------------------------------------------------------


class Wrong(nn.Module):
    """A graph of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "selection by a mask": (lambda x: x[x > 0], "aten.(index|nonzero).* is not in the table"),
    "nonzero": (lambda x: x.nonzero().to(torch.int32), "nonzero"),
    "item": (lambda x: x * x.sum().item(), "not in the table|torch.export refuses"),
    "a slice that depends on data": (lambda x: x[: int(x.sum().item())], "torch.export refuses"),
    "a branch that depends on data": (
        lambda x: x + 1 if x.sum() > 3 else x,
        "torch.export refuses",
    ),
    "sort": (lambda x: x.sort().values, "aten.sort.default is not in the table"),
    "random numbers": (lambda x: torch.rand_like(x), "rand.* is not in the table"),
    "a shift by a number": (
        lambda x: x.to(torch.int32) >> 3,
        "__rshift__.Scalar is not in the table",
    ),
    "64-bit integers": (lambda x: torch.arange(4) + x.to(torch.int64), r"makes torch.int64"),
    "an argmax left in 64 bits": (lambda x: x.argmax(-1), r"aten.argmax.default makes torch.int64"),
    "double precision": (lambda x: x.double(), "makes torch.float64"),
    "an infinity": (lambda x: torch.where(x > 0, x, -torch.inf), "accelerators fail on infinities"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_is_refused_that_has(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(NotLowerable, match=message):
        lower(export(Wrong(function), {"x": torch.arange(4.0)}), ())


def test_a_dynamic_dimension_is_refused() -> None:
    sizes = {"x": {0: torch.export.Dim("size", min=2, max=9)}}
    program = torch.export.export(
        Wrong(lambda x: x + 1.0), (torch.arange(4.0),), dynamic_shapes=sizes, strict=False
    ).run_decompositions()
    with pytest.raises(NotLowerable, match="dynamic shape"):
        lower(program, ())
