"""Shared parts of the measurements: their commands, tables and files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
import torch
from annotated_types import Len
from pydantic import Field

from inference.command import run_command
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Shown
from inference.flags.values import Words
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder

_DRAWS, _SEED = 2000, 20261

Folder: TypeAlias = Annotated[Path, Shown("DIR")]
FileName: TypeAlias = Annotated[Path, Shown("FILE")]
PairNames: TypeAlias = Annotated[Words, Len(2, 2), Shown("TARGET,DRAFT")]
JsonFile: TypeAlias = Annotated[Path | None, Field(alias="json"), Shown("FILE")]
"""Field of the flag --json: the file that all figures are written to."""


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
