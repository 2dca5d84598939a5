"""Fused rounds through torch_xla: the rules of lowering, and the same results."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["PJRT_DEVICE"] = "CPU"
pytest.importorskip("torch_xla", reason="torch_xla is not installed: `make test-xla` runs these")

from inference.model.round_graph import idle_inputs
from tests.support.buckets import ROUND_CASES, RoundCase, state_of
from tests.xla.test_hlo import TOLERANCE, check_rules, lower, results_of


@pytest.mark.parametrize("case", [case for case in ROUND_CASES if case.stateful], ids=str)
def test_a_round_lowers_to_allowed_operations_and_equals_eager(case: RoundCase) -> None:
    levels, tolerance = len(case.branches), TOLERANCE[case.dtype]
    answer, *caches = results_of(case.graph(), case.inputs(0))
    found = lower(case.graph(), case.inputs(0))
    check_rules(found, 2 * levels + 1 if case.sampled else levels, len(caches))
    if found.results[0].equal(answer):  # else a near-tie of bfloat16: everything is another
        for one, cache in zip(found.results[1:], caches, strict=True):
            torch.testing.assert_close(one, cache, atol=tolerance, rtol=tolerance)
    else:
        assert case.dtype == torch.bfloat16


def test_the_draft_alone_lowers_to_allowed_operations() -> None:
    case = next(case for case in ROUND_CASES if case.stateful and case.sampled)
    found = lower(case.graph(), idle_inputs(case.draft_bucket))
    check_rules(found, 0, len(state_of(case.graph())))
