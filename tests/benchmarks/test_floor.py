"""The promise on laws of time that nobody measured beforehand: a dozen cells of the study."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import ROOT


@pytest.mark.slow
def test_a_dozen_laws_of_time_break_no_promise() -> None:
    command = [sys.executable, "-m", "benchmarks.floor", "--dozen"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.splitlines()[-1] == "0 of 12 cells miss the promise"
