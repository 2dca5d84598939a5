"""Fused rounds lower to the allowed operations, compile with XLA, and compute there what they
compute eagerly.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("jax", reason="jax, which brings XLA, is not installed: pip install '.[dev]'")

from inference.model.round_graph import DRAFT, RoundGraph, StatefulRoundGraph, idle_inputs
from tests.support.buckets import fill, state_of
from tests.support.fused_cases import CASES, Case
from tests.support.lowering import STABLEHLO, Proof, export, prove_fused

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_round_compiles_and_equals_eager(case: Case) -> None:
    graph, proof = case.graph(), prove_fused(case.graph(), case.inputs(0))
    check_report(case, proof)
    inputs = case.inputs(1)
    with torch.no_grad():
        returned = graph(**inputs)
    expected = [returned, *both(graph)] if isinstance(graph, StatefulRoundGraph) else list(returned)
    found = list(proof(inputs))
    found += [proof.state[name] for name in names(graph)] if case.stateful else []
    assert (found[0] != expected[0]).any(-1).sum() <= int(case.dtype == torch.bfloat16)
    if (found[0] == expected[0]).all():
        for one, other in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(
                one, other.to(one.dtype), atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype]
            )


def check_report(case: Case, proof: Proof) -> None:
    """Two top-k for every drafted level and one at the target where it is sampled, else one a
    level; all caches aliased to the last byte.
    """
    operations, levels = proof.report.operations, len(case.branches)
    assert operations.keys() <= STABLEHLO
    assert operations.get("top_k", 0) == (2 * levels + 1 if case.sampled else levels)
    caches = both(case.graph())
    assert (
        operations.get("scatter", 0) == proof.report.aliased_outputs == len(caches) * case.stateful
    )
    assert proof.report.aliased_bytes == case.stateful * sum(cache.nbytes for cache in caches)


def test_the_draft_alone_is_a_graph_of_the_same_package_and_leaves_the_target_as_it_is() -> None:
    case = CASES[3]
    graph, inputs = case.graph(), idle_inputs(case.draft_bucket)
    inputs["draft_tokens"] += 3
    inputs["draft_slots"] = torch.arange(8, dtype=torch.int32).repeat(2, 1)
    inputs["draft_rows"] = torch.arange(2, dtype=torch.int32)
    keys, draft_keys = (graph.cache(which).keys[0].clone() for which in ("", DRAFT))
    proof = prove_fused(graph, inputs)
    proof(inputs)
    assert proof.report.aliased_outputs == len(both(graph))
    assert proof.state["keys_0"][:, :-1].equal(keys[:, :-1])
    assert not proof.state["draft_keys_0"][:, :8].equal(draft_keys[:, :8])


def test_a_round_changes_its_caches_or_nothing() -> None:
    for case in (CASES[0], CASES[2]):
        graph = case.graph()
        signature = export(graph, case.inputs(0)).graph_signature
        assert sorted(signature.buffers_to_mutate.values()) == (
            sorted(names(graph)) if case.stateful else []
        )


def names(graph: RoundGraph | StatefulRoundGraph) -> list[str]:
    """The names of the caches of target and draft, and of what else a graph holds as state."""
    return list(state_of(graph)) or [*graph.names(), *graph.names(DRAFT)]


def both(graph: RoundGraph | StatefulRoundGraph) -> list[Tensor]:
    """What these names stand for."""
    return [graph.get_buffer(name) for name in names(graph)]


def test_graphs_that_write_their_caches_answer_as_graphs_whose_caller_writes() -> None:
    """A text lies in another row of the draft than of the target."""
    writing, plain = (
        Case(stateful=stateful, sampled=True, branches=(2, 1)) for stateful in (True, False)
    )
    inputs, graph = writing.inputs(3), writing.graph()
    assert isinstance(graph, StatefulRoundGraph)
    assert not inputs["rows"].equal(inputs["draft_rows"])
    with torch.no_grad():
        fill(graph, inputs)
        assert graph(**inputs).equal(plain.graph()(**inputs)[0])
