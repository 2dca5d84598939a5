"""Shared parts of the measurements: their commands, tables and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import torch
from annotated_types import Len
from pydantic import Field

from inference.command import run_command
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Metavar
from inference.flags.values import Words
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.decoder import Decoder, layers_on

Folder: TypeAlias = Annotated[Path, Metavar("DIR")]
FileName: TypeAlias = Annotated[Path, Metavar("FILE")]
PairNames: TypeAlias = Annotated[Words, Len(2, 2), Metavar("TARGET,DRAFT")]
JsonFile: TypeAlias = Annotated[Path | None, Field(alias="json"), Metavar("FILE")]
"""Field of the flag --json: the file that all figures are written to."""


def cpu_decoder(
    directory: Path, positions: int, vocabulary: int, dtype: torch.dtype | None
) -> Decoder:
    """A model's decoder on the CPU, as a target computes it. dtype: None for that of its files."""
    cpu = torch.device("cpu")
    return load_decoder(
        directory,
        positions=positions,
        vocabulary=vocabulary,
        dtype=dtype,
        device=cpu,
        layers=layers_on(cpu),
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


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]
