"""Runs `outrider bench` and `outrider bench compare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from inference.command import run_command
from outrider.measure.bench_options import BenchOptions, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb. Returns 0 when all was measured."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    # imported behind the flags: help needs no torch
    if isinstance(options, BenchOptions):
        work: Any = import_module("outrider.measure.run").bench
    else:
        work = import_module("outrider.measure.two_runs").compare_runs
    return run_command(lambda: int(work(options)), debug=options.debug)
