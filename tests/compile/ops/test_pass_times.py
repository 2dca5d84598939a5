"""The time of a compiled pass: what others measured is predicted, and nothing costs less for being
larger.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from compile.ops.op_work import OpWork, op_work
from compile.ops.pass_time import (
    COSTS,
    FITTED,
    PUBLISHED,
    RATES,
    PassTime,
    PassWork,
    pass_time,
    pass_work,
)
from compile.ops.recording import record, record_call
from compile.plan.graph_time import graph_time
from compile.spec import CompileSpec, verify_bucket
from inference.artifact import DraftBucket, FusedPart, RoundBucket
from inference.model.config import read_config, read_raw_config
from inference.model.round_graph import idle_inputs
from inference.tree_shape import Branches
from tests.support.commands import Run
from tests.support.repository import ROOT, run_module

SHAPES = ROOT / "docs/shapes"


def test_passes_that_others_measured_are_predicted_within_fifteen_percent() -> None:
    """Those of trn1, to some of which nothing was fitted. Those of trn2 stand apart, twice."""
    shown = run_module("benchmarks.known_passes")
    heads = re.findall(r"^(.*, as \w+): Fitted", shown, re.MULTILINE)
    trn2 = ["trn2, solved from, as {}", "trn2, held out, as {}"]
    told = [words.format(how) for how in ("computed", "published") for words in trn2]
    assert heads == ["fitted, as computed", "held out, as computed", *told]
    assert shown.count("predicted") == 5 + 5 + 2 * (3 + 3)


def test_what_was_published_of_trn2_is_twice_what_is_computed_and_a_node_fifteen_times() -> None:
    config = read_config(SHAPES / "llama-3.1-8b")
    four = replace(spec(1), target="trn2", tensor_parallel=4)
    alone, tree = (verify_bucket(1, nodes, 2112, 4160, sampled=False) for nodes in (1, 17))
    one, wide = (graph_time(config, four, bucket) for bucket in (alone, tree))
    assert one.published is not None
    assert wide.published is not None
    assert one.planned == one.published == pytest.approx(25.6e-3, rel=0.03)
    assert one.published > 2 * one.seconds
    assert wide.published - one.published > 10 * (wide.seconds - one.seconds)
    assert graph_time(config, spec(1), alone).published is None


def test_the_constants_are_frozen() -> None:
    """Whoever changes one fits all anew, to what was measured (benchmarks/known_passes.py), and
    makes the figures of docs/neuron-pass.md and the bundled profiles again.
    """
    told = {name: asdict(rates) for name, rates in RATES.items() if name != "trn3"}
    told |= {"fitted": asdict(FITTED)}
    told |= {f"{name} as published": asdict(fitted) for name, fitted in PUBLISHED.items()}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    assert digest[:16] == "d81d60f4475cab1a"


def spec(rows: int, dtype: str = "bfloat16") -> CompileSpec:
    bucket = verify_bucket(rows, 64, 4160, 4160, sampled=True)
    return CompileSpec("m", "trn1", 128_256, (bucket,), rows, 4096, 64, dtype, 2)


@cache
def time_of(rows: int, nodes: int, slots: int, *, sampled: bool) -> PassTime:
    config = read_config(SHAPES / "llama-3.1-8b")
    bucket = verify_bucket(rows, nodes, slots, 4160, sampled=sampled)
    return pass_time(config, spec(rows), bucket)


def test_the_weights_of_an_8b_model_take_27_6_ms_at_the_documented_rate() -> None:
    config = read_config(SHAPES / "llama-3.1-8b")
    work = pass_work(config, spec(1), verify_bucket(1, 1, 2112, 4160, sampled=False))
    documented = replace(RATES["trn1"], stream=RATES["trn1"].dma)
    floor = work.milliseconds(documented)
    assert floor.costs["weights"] == pytest.approx(27.6, abs=0.05)


def test_a_draft_in_the_graphs_makes_a_sampled_tree_no_cheaper() -> None:
    config, tree = read_config(SHAPES / "llama-3.2-1b"), verify_bucket(1, 16, 64, 80, sampled=True)
    chain, prompts = Branches.chain(2), (DraftBucket(1, 16, 80, 1, 1, False, 80),)
    rounds = (RoundBucket.of(chain, 1, 80, 80, sampled=True),)
    whole = verify_bucket(1, 16, 80, 80, sampled=True)
    alone = CompileSpec("m", "trn1", 128_256, (whole,), 1, 64, 16, "bfloat16", 2)
    draft = read_raw_config(SHAPES / "llama-3.2-1b")
    beside = replace(alone, fused=FusedPart("draft", "", draft, prompts, rounds))
    both = [pass_time(config, one, tree).total for one in (alone, beside)]
    assert both[1] == pytest.approx(both[0], rel=0.01)


def test_every_cost_is_named_and_they_add_up() -> None:
    time = time_of(1, 16, 2112, sampled=True)
    assert tuple(time.costs) == COSTS
    assert time.total == pytest.approx(sum(time.costs.values()))
    assert time.largest == "weights"


def test_larger_graphs_take_longer_and_only_sampled_ones_draw() -> None:
    base = time_of(1, 16, 2112, sampled=False)
    for larger in ((4, 16, 2112), (1, 64, 2112), (1, 16, 4160)):
        assert time_of(*larger, sampled=False).total > base.total
    drawn = time_of(1, 16, 2112, sampled=True)
    assert drawn.total > base.total
    assert base.costs["noise"] == base.costs["top-k"] == 0.0
    assert drawn.costs["noise"] < 0.01  # places in the window, of what was made before


def test_a_drawn_pass_takes_a_millisecond_more_than_a_greedy_one_at_most() -> None:
    """Noise is made before, and ranks exchange candidates."""
    for rows, nodes in ((1, 16), (4, 16)):
        drawn, greedy = (time_of(rows, nodes, 2112, sampled=each) for each in (True, False))
        assert drawn.total - greedy.total < 1.0


SMALL = verify_bucket(1, 8, 256, 256, sampled=False)
SMALL_SPEC = CompileSpec("m", "trn1", 128_256, (SMALL,), 1, 248, 8, "bfloat16", 2)


def test_a_slower_stream_makes_the_whole_pass_slower() -> None:
    work = pass_work(read_config(SHAPES / "llama-3.2-1b"), SMALL_SPEC, SMALL)
    assert (
        work.milliseconds(RATES["inf2"]).total
        > work.milliseconds(RATES["trn1"]).total
        > work.milliseconds(RATES["trn2"]).total
    )


def test_the_work_of_a_deep_graph_is_that_of_its_layers() -> None:
    config = read_config(SHAPES / "llama-3.2-1b")
    whole = PassWork.of(record_call(config, SMALL_SPEC, idle_inputs(SMALL)))
    extended = pass_work(config, SMALL_SPEC, SMALL)
    for name, work in whole.by_cost.items():
        for field in (
            "weights", "cache", "vector", "scalar", "tensor", "collectives", "instructions",
        ):  # fmt: skip
            assert getattr(extended.by_cost[name], field) == pytest.approx(getattr(work, field))


class Weighed(nn.Module):
    """One operation of each engine, on sizes whose cycles are known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(256, 128))

    def forward(self, x: Tensor) -> Tensor:  # [4, 128]
        products = x @ self.weight.T  # two tiles, of which each takes 64 cycles at least
        raised = torch.exp(products)  # 1024 elements are 8 a lane
        torch.topk(raised, 16)  # two rounds of two passes over 256 elements
        return raised + products  # two operands


def test_an_operations_cycles_are_the_documented_ones() -> None:
    with torch.device("meta"):
        recording = record(Weighed().half(), {"x": torch.empty(4, 128, dtype=torch.float16)})
    works = {op.name: op_work(op) for op in recording.ops if not op.view}
    assert all(op_work(op) == OpWork() for op in recording.ops if op.view)
    assert works["mm"] == OpWork(weights=256 * 128 * 2, tensor=2 * 64, instructions=4)
    assert works["exp"] == OpWork(scalar=8 + 100, instructions=1)
    assert works["topk"] == OpWork(vector=2 * (2 * 256 + 100), instructions=4)
    assert works["add"] == OpWork(vector=2 * 8 + 100, instructions=1)


def test_float32_products_take_four_times_as_long() -> None:
    cycles = []
    for dtype in (torch.bfloat16, torch.float32):
        with torch.device("meta"):
            recording = record(Weighed().to(dtype), {"x": torch.empty(4, 128, dtype=dtype)})
        cycles.append(sum(op_work(op).tensor for op in recording.ops))
    assert cycles[1] == 4 * cycles[0] > 0


def test_the_command_prints_a_line_for_each_graph(run: Run) -> None:
    flags = ["--model", SHAPES / "llama-3.2-1b", "--target", "trn1", "--rows", "1"]
    sizes = ["--tree_sizes", "2", "--max_tree_nodes", "2", "--slots", "2050"]
    head, *lines = run("compile", "times", *flags, *sizes).out.splitlines()
    assert all(cost in head for cost in COSTS)
    assert len(lines) == 7
    assert lines[-2].startswith("fill_noise ")
    assert sum(" 4.0 " in line for line in lines[:-1]) == 6
    assert "passes that others measured on trn1 are within 15%" in lines[-1]
    assert FITTED.host == 4e-3
