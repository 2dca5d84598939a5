"""Loads, and the calls that follow from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from compile.plan.workload import CallShape, Limits, Load, calls_of, read_load
from tests.support.completions import changed, completion
from tests.support.refusals import assert_refused

LIMITS = Limits(rows=2, chunk=16, tree_nodes=8, least_nodes=1, sequence_length=120)


def test_a_session_becomes_prompt_chunks_and_trees_on_a_growing_context() -> None:
    load = Load("by hand", ((40, 7),), {4: 3, 8: 1}, {2: 1}, acceptance_length=2.5)
    assert calls_of(load, LIMITS) == {
        CallShape(True, 1, 16, 1): 1,
        CallShape(True, 1, 16, 16): 1,
        CallShape(True, 1, 7, 32): 1,
        **{
            CallShape(False, 2, 4, slots): pytest.approx(0.375) for slots in (43, 45, 48)
        },  # three rounds, shared by two sessions
        **{CallShape(False, 2, 8, slots): pytest.approx(0.125) for slots in (47, 49, 52)},
    }


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"sessions": []}, ["sessions"]),
        ({"sessions": [[0, 5]]}, ["sessions[0][0] is 0"]),
        ({"sessions": [[1, 5, 2]]}, ["sessions[0] is [1, 5, 2]"]),
        ({"tree_sizes": {"0": 1}}, ["tree_sizes", "'0'"]),
        ({"tree_sizes": {"1": 0}}, ["tree_sizes", "is 0", "greater than 0"]),
        ({"tree_sizes": {}}, ["tree_sizes", "at least 1"]),
        ({"concurrent": {"one": 1}}, ["concurrent", "'one'"]),
        ({"acceptance_length": 0.5}, ["acceptance_length is 0.5", "equal to 1"]),
        ({"surprise": 1}, ["'surprise'"]),
    ],
)
def test_a_bad_load_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], shown: list[str]
) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps(asdict(Load("x", ((4, 4),), {4: 1}, {1: 1}, 2.0)) | change))
    assert_refused(lambda: read_load(path), shown)


def test_the_profile_of_a_run_is_a_measured_load(tmp_path: Path) -> None:
    path = tmp_path / "outrider-profile.json"
    one = completion(12, prompt_tokens=30, forwards=4, candidates=61, num_accepted_tokens=8)
    two = completion(4, prompt_tokens=9, forwards=2, candidates=14, num_accepted_tokens=2)
    texts = [one, two, changed(one, forwards=0)]
    path.write_text(json.dumps([text.record() for text in texts]))
    load = read_load(path)
    assert (load.sessions, load.tree_sizes, load.concurrent) == (
        ((30, 12), (9, 4)),
        {16: 4, 8: 2},
        {1: 1},
    )
    assert load.acceptance_length == pytest.approx(16 / 6)
    path.write_text("[]")
    assert_refused(lambda: read_load(path), [str(path), "a text with"])
    path.write_text("[{}]")
    assert_refused(lambda: read_load(path), ["field [0] ", "prompt_tokens"])
