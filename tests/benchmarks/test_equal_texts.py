"""Orders of arrival and neighbours that benchmarks/equal_texts.py plays change no float32 text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import ROOT


@pytest.mark.slow
def test_in_float32_neither_orders_of_arrival_nor_sessions_beside_change_a_text() -> None:
    flags = ["--dtype", "float32", "--orders", "1", "--tokens", "24", "--temperature", "0.8"]
    command = [sys.executable, "-m", "benchmarks.equal_texts", *flags]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("9 of 9 (1.000)") == 2, made.stdout
