"""Shared parts of the measurements: their commands, calls that take turns, tables and files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from pydantic import Field

from inference.backends import Segment
from inference.command import run_command
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Shown
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.tree import TokenTree

WARM_UP = 2
"""Rounds of calls that are not counted."""

_DRAWS, _SEED = 2000, 20261

Folder: TypeAlias = Annotated[Path, Shown("DIR")]
FileName: TypeAlias = Annotated[Path, Shown("FILE")]
JsonFile: TypeAlias = Annotated[Path | None, Field(alias="json"), Shown("FILE")]
"""Field of the flag --json: the file that all figures are written to."""


class Taken(NamedTuple):
    """Milliseconds of each repetition of a call: by the wall, and of this process's CPU."""

    wall: list[float]
    cpu: list[float]


def in_turn(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, Taken]:
    """Make the calls in turn (A B C A B C), so that a busy machine slows all of them alike."""
    taken = {name: Taken([], []) for name in calls}
    for repetition in range(WARM_UP + repetitions):
        for name, call in calls.items():
            start, used = time.perf_counter(), time.process_time()
            call()
            if repetition >= WARM_UP:
                taken[name].wall.append((time.perf_counter() - start) * 1e3)
                taken[name].cpu.append((time.process_time() - used) * 1e3)
    return taken


def medians(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median milliseconds of each call, taken in turn."""
    taken = in_turn(calls, repetitions)
    return {name: round(median(one.wall), 3) for name, one in taken.items()}


def with_cpu(
    calls: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, dict[str, float]]:
    """Median and least wall, and least CPU, milliseconds of each call, taken in turn."""
    return {
        name: {
            "wall_ms": round(median(one.wall), 3),
            "least_ms": round(min(one.wall), 3),
            "cpu_ms": round(min(one.cpu), 3),
        }
        for name, one in in_turn(calls, repetitions).items()
    }


def heap(nodes: int, context: int, params: SamplingParams, row: int = 0) -> Segment:
    """A tree of `nodes` nodes, a binary heap, after `context` committed tokens."""
    every = np.arange(nodes, dtype=np.int32)
    tree = TokenTree(every, ((every + 1) // 2 - 1).astype(np.int32))
    seen = np.ones((1, context), dtype=np.bool_)
    positions = (context + tree.depths).astype(np.int32)
    return Segment(row, tree.tokens, context + every, positions, seen, tree.mask, every, params)


def cpu_decoder(
    directory: Path, positions: int, vocabulary: int, dtype: torch.dtype | None
) -> Decoder:
    """A model's decoder on the CPU. dtype: None for that of its files."""
    cpu = torch.device("cpu")
    return load_decoder(
        directory, positions=positions, vocabulary=vocabulary, dtype=dtype, device=cpu
    )


class Flags(CommandOptions):
    """Base of a measurement's flags, whose help is the docstring of the measurement's module."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.__doc__ = sys.modules[cls.__module__].__doc__


Given = TypeVar("Given", bound=Flags)


def run(flags: type[Given], main: Callable[[Given], int | None]) -> None:
    """Run a measurement with the flags of this process, and exit with its status."""
    spec = sys.modules[flags.__module__].__spec__
    name = spec.name.removesuffix(".__main__") if spec else ""
    given = parse_flags(flags, f"python -m {name}", None)
    sys.exit(run_command(lambda: main(given) or 0, debug=given.debug))


def write_json(path: Path | None, figures: object) -> None:
    """Write the figures, if a file was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def show(figures: Mapping[str, object], path: Path | None) -> None:
    """Print the figures, one a line, and write them, if a file was asked for."""
    for name, value in figures.items():
        print(f"{name}: {value}")
    write_json(path, figures)


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]


def geometric_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the geometric mean with a confidence of 0.95, by the percentile
    bootstrap with a fixed seed.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    draws = np.random.default_rng(_SEED).choice(logs, (_DRAWS, len(logs)))
    low, high = np.exp(np.percentile(draws.mean(1), [2.5, 97.5]))
    return float(low), float(high)


def commit() -> str:
    """The commit of this checkout, marked where files were changed; unknown outside of one."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    asked = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def machine() -> dict[str, str | int | None]:
    """The machine that numbers were made on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
