"""How every command takes its flags, from a record, and how it ends: a line and an exit code for what went wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from inference.errors import OutriderError

FAILED, INTERRUPTED = 1, 130


def add_flag(
    record: type,
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    alias: str | None = None,
    **settings: Any,
) -> None:
    """A flag under its underscore and its dash spelling, and those of its alias, for the record's field of this name and with its default.

    settings: further arguments of argparse; a default among them wins.
    """
    names = [name] if alias is None else [name, alias]
    spellings = dict.fromkeys(
        f"--{spelling}" for one in names for spelling in (one, one.replace("_", "-"))
    )
    group.add_argument(
        *spellings, dest=name, help=text, **{"default": getattr(record, name)} | settings
    )


def run_command(work: Callable[[], int], *, debug: bool, interrupted: str = "interrupted") -> int:
    """The exit code of `work`; an OutriderError becomes one line on stderr, or with `debug` its traceback."""
    try:
        return work()
    except OutriderError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
