"""How every command takes its flags, from a record, and how it ends: a line and an exit code for
what went wrong.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from inference.errors import OutriderError

FAILED, USAGE, INTERRUPTED, UNREAD = 1, 2, 130, 141

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def add_flag(
    record: type,
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    alias: str | None = None,
    **settings: Any,
) -> None:
    """A flag under its underscore and its dash spelling, and those of its alias, for the record's
    field of this name and with its default.

    settings: further arguments of argparse; a default among them wins.
    """
    names = [name] if alias is None else [name, alias]
    spellings = dict.fromkeys(
        f"--{spelling}" for one in names for spelling in (one, one.replace("_", "-"))
    )
    group.add_argument(
        *spellings, dest=name, help=text, **{"default": getattr(record, name)} | settings
    )


def option(
    default: Any, text: str, group: str = "", alias: str | None = None, **settings: Any
) -> Any:
    """A field of a record that is a flag of a command: its one declaration, for add_flags."""
    return field(default=default, metadata={"option": (text, group, alias, settings)})


def add_flags(record: type, parser: argparse.ArgumentParser) -> None:
    """The flags of all fields made by option(), in their groups.

    What a field's type says is not said again: a bool is a switch, a tuple may be repeated, numbers
    and paths are converted.
    """
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    hints = get_type_hints(record)
    for entry in fields(record):
        if "option" not in entry.metadata:
            continue
        text, title, alias, settings = entry.metadata["option"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        settings = _converting(hints[entry.name]) | settings
        add_flag(record, groups[title], entry.name, text, alias, **settings)


def _converting(hint: Any) -> dict[str, Any]:
    """Argparse's settings for a type, or for one that may be None."""
    if get_origin(hint) is tuple:
        return {"action": "append", "default": None}
    kind = next(kind for kind in (*get_args(hint), hint) if kind is not type(None))
    if kind is bool:
        return {"action": "store_true"}
    return {"type": kind} if kind in (int, float, Path) else {}


class _Gone(argparse.Action):
    """A flag that there is no more; `const` says what replaced it."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> None:
        parser.exit(USAGE, f"{parser.prog}: error: --{self.dest} is gone: {self.const}\n")


def add_gone(parser: argparse.ArgumentParser, name: str, why: str) -> None:
    """A flag of earlier versions: one line says what replaced it."""
    parser.add_argument(
        *dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")),
        action=_Gone,
        nargs="?",
        const=why,
        dest=name,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def run_command(work: Callable[[], int], *, debug: bool, interrupted: str = "interrupted") -> int:
    """The exit code of `work`.

    An OutriderError or a full disk becomes one line on stderr, or with `debug` its traceback. Where
    nobody reads stdout any more, as behind `| head`, it ends without a word.
    """
    try:
        return work()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is not written yet
        return UNREAD
    except (OutriderError, OSError) as error:
        if debug or (isinstance(error, OSError) and error.errno not in _FULL):
            raise
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED


def say(line: str) -> None:
    """Tell the user something: stdout is for what was asked for, this goes to stderr."""
    print(line, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """One line without control characters: what another side said may stand in it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
