"""Fused rounds lower to the allowed operations, compile with XLA, and compute there what they
compute eagerly.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("jax", reason="jax, which brings XLA, is not installed: pip install '.[dev]'")

from inference.model.round_graph import CACHES, RoundGraph, StatefulRoundGraph, draft_inputs
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
    expected = (
        [returned, *(getattr(graph, name) for name in CACHES)]
        if isinstance(graph, StatefulRoundGraph)
        else list(returned)
    )
    found = list(proof(inputs))
    found += [proof.state[name] for name in CACHES] if case.stateful else []
    assert (found[0] != expected[0]).any(-1).sum() <= int(case.dtype == torch.bfloat16)
    if (found[0] == expected[0]).all():
        for one, other in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(
                one, other.to(one.dtype), atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype]
            )


def check_report(case: Case, proof: Proof) -> None:
    """Two top-k for every drafted level and one at the target where it is sampled, else one a
    level; four caches aliased to the last byte.
    """
    operations, levels = proof.report.operations, len(case.branches)
    assert operations.keys() <= STABLEHLO
    assert operations.get("top_k", 0) == (2 * levels + 1 if case.sampled else levels)
    assert operations.get("scatter", 0) == proof.report.aliased_outputs == 4 * case.stateful
    caches = [getattr(case.graph(), name) for name in CACHES]
    assert proof.report.aliased_bytes == case.stateful * sum(cache.nbytes for cache in caches)


def test_the_draft_alone_is_a_graph_of_the_same_package_and_leaves_the_target_as_it_is() -> None:
    case = CASES[3]
    graph, inputs = case.graph(), draft_inputs(case.draft_bucket)
    inputs["draft_tokens"] += 3
    inputs["draft_slots"] = torch.arange(8, dtype=torch.int32).repeat(2, 1)
    before = {name: getattr(graph, name).clone() for name in CACHES}
    proof = prove_fused(graph, inputs)
    proof(inputs)
    assert proof.report.aliased_outputs == len(CACHES)
    assert proof.state["keys"][:, :, :, :-1].equal(before["keys"][:, :, :, :-1])
    assert not proof.state["draft_keys"][:, :, :, :8].equal(before["draft_keys"][:, :, :, :8])


def test_a_round_changes_its_caches_or_nothing() -> None:
    for case in (CASES[0], CASES[2]):
        signature = export(case.graph(), case.inputs(0)).graph_signature
        assert sorted(signature.buffers_to_mutate.values()) == (
            sorted(CACHES) if case.stateful else []
        )


def test_a_text_may_lie_in_another_row_of_the_draft_than_of_the_target() -> None:
    """The stateful graph with crossed rows answers what the graph whose caller names the rows
    answers.
    """
    crossed, plain = (
        Case(stateful=True, sampled=True, branches=(2, 1)),
        Case(stateful=False, sampled=True, branches=(2, 1)),
    )
    inputs = crossed.inputs(3)
    with torch.no_grad():
        answer: Tensor = crossed.graph()(**inputs)
        graph = plain.graph()
        assert isinstance(graph, RoundGraph)
        swapped = {
            name: tensor.flip(0) if name.startswith("draft_") else tensor
            for name, tensor in inputs.items()
        }
        rows = torch.arange(2, dtype=torch.int32)
        expected = graph(**swapped | {"rows": rows, "draft_rows": rows.flip(0)})[0]
    assert answer.equal(expected)
