"""What all commands share: flags declared as fields of a record, and exit codes.

An error ends a command with one line on stderr and an exit code.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from inference.errors import OutriderError

FAILED, USAGE, INTERRUPTED, UNREAD = 1, 2, 130, 141

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$")
_UNKNOWN = re.compile(r"unrecognized arguments: ([^ =]*)")


class Parser(argparse.ArgumentParser):
    """Answers a slip with one line, which names the flag or value that was meant."""

    @property
    def flags(self) -> set[str]:
        """Every flag that the help names."""
        return set(re.findall(r"--\w[\w-]*", self.format_help()))

    def error(self, message: str) -> NoReturn:
        choice, unknown = _CHOICE.search(message), _UNKNOWN.match(message)
        meant = ""
        if choice:
            meant = nearest(choice[1], [name.strip(" '") for name in choice[2].split(",")])
        elif unknown:
            meant = nearest(unknown[1], self.flags)
        self.exit(USAGE, f"{self.prog}: error: {message}{meant}\n")


def called(verb: str, otherwise: str) -> str:
    """The name of a command that is also a verb of `outrider`, as the user has called it."""
    return f"outrider {verb}" if sys.argv[1:2] == [verb] else otherwise


def nearest(name: str, names: Iterable[str], before: str = "") -> str:
    """The end of an error about an unknown name: a similar name, where there is one.

    before: what stands before that name
    """
    found = get_close_matches(name, names, 1)
    return f"; did you mean {before}{found[0]}?" if found else ""


def add_flag(
    record: type,
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    alias: str | None = None,
    **settings: Any,
) -> None:
    """Add a flag for the record's field `name`, with the field's default.

    The flag and its alias are accepted with underscores and with dashes.

    settings: further arguments of argparse; a default among them replaces the field's.
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
    """Declare a field of a record as a flag of a command; add_flags() adds it to a parser."""
    return field(default=default, metadata={"option": (text, group, alias, settings)})


def add_flags(record: type, parser: argparse.ArgumentParser) -> None:
    """Add the flags of all fields that option() declared, in their groups.

    The field's type decides how a flag is read: a bool is a switch, a tuple's flag may be repeated,
    numbers and paths are converted.
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
    """Argparse's settings for a field's type, which may be optional."""
    if get_origin(hint) is tuple:
        return {"action": "append", "default": None}
    kind = next(kind for kind in (*get_args(hint), hint) if kind is not type(None))
    if kind is bool:
        return {"action": "store_true"}
    return {"type": kind} if kind in (int, float, Path) else {}


class _Gone(argparse.Action):
    """Argparse action of a removed flag; `const` says what replaced it."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> None:
        parser.exit(USAGE, f"{parser.prog}: error: --{self.dest} is gone: {self.const}\n")


def add_gone(parser: argparse.ArgumentParser, name: str, why: str) -> None:
    """Add a removed flag, whose use ends the command with a line that says what replaced it."""
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
    """Run `work`; returns the command's exit code.

    An OutriderError or a full disk becomes one line on stderr, and is raised with `debug`. A closed
    stdout, as behind `| head`, ends the command silently. Other errors are raised.
    """
    try:
        return work()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered output
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
    """Tell the user something, on stderr; stdout is for the command's results."""
    _hearers[-1](line, True)


def glance(line: str) -> None:
    """Tell the user how things are at this moment; the next such line takes its place."""
    _hearers[-1](line, False)


def is_heard() -> bool:
    """Whether a display shows what is said, such as a text that is being made."""
    return len(_hearers) > 1


def _print(line: str, _lasting: bool) -> None:
    print(line, file=sys.stderr, flush=True)


Hear = Callable[[str, bool], None]
"""Hears a message, and whether it is to stay."""

_hearers: list[Hear] = [_print]


@contextmanager
def told_to(hear: Hear) -> Iterator[None]:
    """All that is said within this context, on any thread, goes to `hear`."""
    _hearers.append(hear)
    try:
        yield
    finally:
        _hearers.remove(hear)


def printable(text: str) -> str:
    """The text on one line without control characters, since it may quote a remote peer."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
