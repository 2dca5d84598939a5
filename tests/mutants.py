"""Plant one-line faults of tests/mutants.txt, each of which its nearest test file has to find.

    python -m tests.mutants [--seed N] [--count N]

The file has to fail within SECONDS of the processor. Other faults are drawn each day.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support.repository import ROOT

SECONDS = 14


class Fault(NamedTuple):
    path: str
    test: str
    before: str
    after: str


def read_faults() -> list[Fault]:
    """All faults, each a paragraph: PATH TEST, then `- LINE` and `+ LINE` without indentation."""
    text = (ROOT / "tests" / "mutants.txt").read_text(encoding="utf-8")
    lines = [paragraph.splitlines() for paragraph in text.strip().split("\n\n")]
    return [Fault(*[*head.split(), before[2:], after[2:]]) for head, before, after in lines]


def run(test: str, copy: Path) -> int:
    """The exit code of pytest for a test file of the copy. It is killed after SECONDS."""
    pytest = [sys.executable, "-m", "pytest", "-xq", "-m", "not extended", test]
    limited = ["sh", "-c", f'ulimit -t {SECONDS}; exec "$@"', "sh", *pytest]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(limited, cwd=copy, env=environment, capture_output=True).returncode


def problem(fault: Fault, copy: Path) -> str:
    """Why the fault was not found; empty where it was."""
    path = copy / fault.path
    whole = path.read_text(encoding="utf-8")
    lines = [line for line in whole.splitlines() if line.strip() == fault.before]
    if len(lines) != 1:
        return "no single line of the file reads so"
    if run(fault.test, copy):
        return "the test file fails without it"
    path.write_text(whole.replace(lines[0], lines[0].replace(fault.before, fault.after)))
    code = run(fault.test, copy)
    path.write_text(whole)
    return "" if code in (1, 2) else "not found"  # a test failed, or could not be imported


def main() -> int:
    """Plant the drawn faults. Returns 0 if each was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--seed", type=int, default=date.today().toordinal())
    parser.add_argument("--count", type=int, default=20)
    given, faults = parser.parse_args(), read_faults()
    drawn = random.Random(given.seed).sample(faults, min(given.count, len(faults)))
    with TemporaryDirectory() as directory:
        copy = Path(directory) / "outrider"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        problems = [(fault, why) for fault in drawn if (why := problem(fault, copy))]
    for fault, why in problems:
        print(f"{fault.path}: {fault.after}: {why} ({fault.test})")
    print(f"seed {given.seed}: {len(drawn) - len(problems)} of {len(drawn)} faults found")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
