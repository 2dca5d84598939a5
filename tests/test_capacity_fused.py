"""The capacity study's arithmetic: what drafting costs a chip, and the profiles of its drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity_fused import PAIRS, FusedProfile, drafting_seconds, slower
from compile.device import device_of
from compile.memory import work
from compile.spec import CompileSpec, verify_bucket
from inference.backends.timed import TimeProfile, find_profile
from inference.model.config import read_config

ROOT = Path(__file__).parents[1]
TARGET = TimeProfile(
    "t", "a test", "nothing", 0.1, 0.0, 0.001, 0.0, rows=(1, 2, 4, 8), nodes=(16,), slot_step=1
)
DRAFT = TimeProfile(
    "d",
    "a test",
    "nothing",
    0.02,
    0.0,
    0.01,
    0.0,
    rows=(1, 2, 4, 8),
    nodes=(1, 2, 4, 8),
    slot_step=1,
)


def test_a_tree_of_16_nodes_is_drafted_by_four_calls_of_twice_as_many_nodes_each() -> None:
    assert drafting_seconds(DRAFT, 1, 16, 0) == pytest.approx(0.02 + 0.02 + 0.04 + 0.08)
    assert drafting_seconds(DRAFT, 2, 16, 0) == pytest.approx(0.02 + 0.04 + 0.08 + 0.16)
    assert drafting_seconds(DRAFT, 1, 1, 0) == 0


def test_a_host_drafts_before_each_forward_for_all_rows_or_one_after_the_other() -> None:
    at_once, one_by_one = (
        FusedProfile(**vars(TARGET), draft=DRAFT, together=rows) for rows in (8, 1)
    )
    assert at_once.seconds(2, 16, 0) == pytest.approx(0.1 + 0.30)
    assert one_by_one.seconds(2, 16, 0) == pytest.approx(0.1 + 2 * 0.16)
    assert at_once.seconds(1, 16, 0) == one_by_one.seconds(1, 16, 0) == pytest.approx(0.1 + 0.16)


def test_a_slower_profile_takes_so_many_times_longer_for_everything() -> None:
    one = find_profile(PAIRS[0][0])
    assert slower(one, 3).seconds(5, 16, 300) == pytest.approx(3 * one.seconds(5, 16, 300))
    assert replace(slower(one, 3), pass_seconds=one.pass_seconds).rows == one.rows


def test_the_drafts_roofline_is_what_the_compilers_plan_counts_and_the_other_one_is_slower_as_the_targets() -> (
    None
):
    config, device = read_config(ROOT / "docs/shapes/llama-3.2-1b"), device_of("trn1")
    bucket = verify_bucket(1, 64, 2112, 2112, sampled=False)
    spec = CompileSpec(
        "llama",
        "trn1",
        128_256,
        (bucket,),
        rows=1,
        sequence_length=2048,
        max_tree_nodes=64,
        dtype="bfloat16",
        tensor_parallel=2,
    )
    (measured, scaled), (roofline, draft) = (
        (find_profile(target), find_profile(beside)) for target, beside in PAIRS
    )
    for rows, nodes, slots in ((1, 1, 0), (64, 1, 2048), (64, 64, 0), (64, 64, 2048)):
        need = work(config, spec, rows, nodes, slots, nodes)
        assert draft.seconds(rows, nodes, slots) == pytest.approx(
            device.seconds(need.flops, need.moved, "bfloat16"), rel=0.02
        )
        factor = measured.seconds(rows, nodes, slots) / roofline.seconds(rows, nodes, slots)
        assert scaled.seconds(rows, nodes, slots) / draft.seconds(
            rows, nodes, slots
        ) == pytest.approx(factor, rel=0.01)
    for profile in (draft, scaled):
        assert "not yet run on hardware" in profile.source
        assert profile.assumes
