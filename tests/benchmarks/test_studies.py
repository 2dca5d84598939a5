"""Studies at a small size: what they find holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.repository import run_module

pytestmark = pytest.mark.slow


def test_a_dozen_laws_of_time_that_nobody_measured_break_no_promise() -> None:
    said = run_module("benchmarks.floor", "--dozen").splitlines()
    assert said[-1] == "0 of 12 cells miss the promise"


def test_in_float32_neither_orders_of_arrival_nor_sessions_beside_change_a_text() -> None:
    flags = ["--dtype", "float32", "--orders", "1", "--tokens", "24", "--temperature", "0.8"]
    said = run_module("benchmarks.equal_texts", *flags)
    assert said.count("9 of 9 (1.000)") == 2, said


def collections(file: Path, *flags: str) -> int:
    few = ["--sessions", "64", "--nodes", "4", "--forwards", "4", "--json", file, *flags]
    run_module("benchmarks.engine", *few)
    count: int = json.loads(file.read_text(encoding="utf-8"))[0]["collections"]
    return count


def test_forwards_of_many_sessions_set_off_no_collection_of_garbage(tmp_path: Path) -> None:
    assert collections(tmp_path / "often.json", "--collect_often"), "Python's settings make some"
    assert not collections(tmp_path / "rarely.json")
