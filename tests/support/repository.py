"""Where the repository lies, and its programs, for tests that read its files or start them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_module(name: str, *flags: object) -> str:
    """Run `python -m NAME FLAGS`, which must succeed; returns what it printed."""
    command = [sys.executable, "-m", name, *map(str, flags)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def tool(name: str) -> str:
    """The path of a program that is installed with this Python; without it the test is skipped."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    return str(path)
