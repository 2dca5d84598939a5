"""Collections of garbage during forwards of many sessions, as benchmarks.engine counts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT


def collections(file: Path, *flags: str) -> int:
    few = ["--sessions", "64", "--nodes", "4", "--forwards", "4", "--json", str(file), *flags]
    command = [sys.executable, "-m", "benchmarks.engine", *few]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    count: int = json.loads(file.read_text(encoding="utf-8"))[0]["collections"]
    return count


@pytest.mark.slow
def test_forwards_of_many_sessions_set_off_no_collection_of_garbage(tmp_path: Path) -> None:
    assert collections(tmp_path / "often.json", "--collect_often"), "Python's settings make some"
    assert not collections(tmp_path / "rarely.json")
