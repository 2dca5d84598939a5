"""What torch_xla makes of fused rounds: the rules of lowering, and the same results. Only `make
test-xla` has torch_xla.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest
import torch
from torch import Tensor

os.environ["PJRT_DEVICE"] = "CPU"
pytest.importorskip("torch_xla", reason="torch_xla is not installed: `make test-xla` runs these")

import torch_xla  # type: ignore[import-not-found]
from torch_xla.debug import metrics  # type: ignore[import-not-found]

from inference.model.round_graph import StatefulRoundGraph, idle_inputs
from tests.support.buckets import state_of
from tests.support.fused_cases import CASES, Case
from tests.xla.test_hlo import ALLOWED, TOLERANCE, WIDE


def lower(graph: StatefulRoundGraph, inputs: dict[str, Tensor]) -> tuple[str, list[Tensor]]:
    """The graph's text and results; nothing may have run on the host."""
    device = torch_xla.device()
    graph, inputs = graph.to(device), {name: tensor.to(device) for name, tensor in inputs.items()}
    torch_xla.sync()
    metrics.clear_all()
    with torch.no_grad():
        results = [graph(**inputs), *both(graph)]
    text: str = torch_xla._XLAC._get_xla_tensors_hlo(results)
    assert [name for name in metrics.counter_names() if name.startswith("aten::")] == []
    torch_xla.sync()
    return text, [result.cpu() for result in results]


def both(graph: StatefulRoundGraph) -> list[Tensor]:
    """What a graph of both models reassigns."""
    return [graph.get_buffer(name) for name in state_of(graph)]


def check_text(text: str, sorts: int, caches: int) -> None:
    opcodes = Counter(
        re.findall(r"^\s*(?:ROOT )?%[\w.-]+ = (?:\([^)]*\)|\S+) ([\w-]+)\(", text, re.MULTILINE)
    )
    assert opcodes.keys() <= ALLOWED
    assert (opcodes["scatter"], opcodes["sort"]) == (caches, sorts)
    assert "<=" not in text  # as bounded, dynamic sizes are written
    wide = [
        line.strip()
        for line in text.splitlines()
        if re.search(r"\b([su]64|f64|c64)\[", line) and "HloModule" not in line
    ]
    assert [
        line for line in wide if not any(re.search("= " + allowed, line) for allowed in WIDE)
    ] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.stateful], ids=str)
def test_a_round_lowers_to_allowed_operations_and_equals_eager(case: Case) -> None:
    graph, levels = case.graph(), len(case.branches)
    assert isinstance(graph, StatefulRoundGraph)
    with torch.no_grad():
        answer = graph(**case.inputs(0))
    again = case.graph()
    assert isinstance(again, StatefulRoundGraph)
    text, found = lower(again, case.inputs(0))
    check_text(text, 2 * levels + 1 if case.sampled else levels, len(both(graph)))
    if found[0].equal(answer):  # else a near-tie of bfloat16, after which everything is another
        for one, cache in zip(found[1:], both(graph), strict=True):
            torch.testing.assert_close(
                one, cache, atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype]
            )
    else:
        assert case.dtype == torch.bfloat16


def test_the_draft_alone_lowers_to_allowed_operations() -> None:
    case = next(case for case in CASES if case.stateful and case.sampled)
    graph = case.graph()
    assert isinstance(graph, StatefulRoundGraph)
    text, _ = lower(graph, idle_inputs(case.draft_bucket))
    check_text(text, 0, len(both(graph)))
