"""What all commands share: exit codes, one-line errors, and messages for the user."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from inference.errors import InvalidRequest, OutriderError

FAILED, USAGE, UNEQUAL_DEVICE, INTERRUPTED, UNREAD = 1, 2, 3, 130, 141

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a suggestion to append to an error about an unknown name: a name a few typing errors
    away, or one with all of its words, such as max_new_tokens for max_tokens. Empty for none.
    """
    words = set(re.findall(r"[^\W_]+", name))
    slips = {entry: _edits(name.lower(), entry.lower()) for entry in names}
    near = [entry for entry, edits in slips.items() if edits <= max(1, len(name.strip("-")) // 4)]
    if len(name) > 2 and near:
        return f"; did you mean {min(near, key=slips.__getitem__)}?"
    wider = [entry for entry in slips if words < set(re.findall(r"[^\W_]+", entry))]
    return f"; did you mean {wider[0]}?" if len(words) > 1 and wider else ""


def check_names(names: Iterable[str], keywords: type, call: str) -> None:
    """Raise InvalidRequest for an unknown keyword argument of a function.

    keywords: the function's keyword arguments, as a TypedDict
    call: the function's name in the error
    """
    for name in names:
        if name not in keywords.__annotations__:
            hint = nearest(name, keywords.__annotations__)
            raise InvalidRequest(f"{call} has no parameter {name}{hint}")


def _edits(name: str, candidate: str) -> int:
    """Return the edit distance: insertions, deletions, replacements and swaps of neighbours."""
    before: list[int] = []
    last = list(range(len(candidate) + 1))
    for row, letter in enumerate(name):
        edits = [row + 1]
        for column, expected in enumerate(candidate):
            edits.append(
                min(edits[-1] + 1, last[column + 1] + 1, last[column] + (letter != expected))
            )
            if row and column and (letter, name[row - 1]) == (candidate[column - 1], expected):
                edits[-1] = min(edits[-1], before[column - 1] + 1)
        before, last = last, edits
    return last[-1]


def run_command(work: Callable[[], int], *, debug: bool, interrupted: str = "interrupted") -> int:
    """Run `work`, and return the command's exit code.

    An OutriderError or a full disk is reported as one line on stderr, or raised with `debug`. A
    closed stdout, as with `| head`, ends the command silently. Other errors are raised.
    """
    try:
        with messages_to(_print):
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
    """Show the user a message on stderr; stdout is for the command's results."""
    _displays[-1](line)


def has_display() -> bool:
    """Whether a display, such as the one that streams the output, shows the messages."""
    return _displays[-1] is not _print


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


Display = Callable[[str], None]

_displays: list[Display] = [_print]


@contextmanager
def messages_to(display: Display) -> Iterator[None]:
    """Send the messages of all threads to `display` within this context."""
    _displays.append(display)
    try:
        yield
    finally:
        last = max(index for index, entry in enumerate(_displays) if entry is display)
        del _displays[last]


def logged(line: str) -> None:
    """Log a message: a program that imports Outrider keeps its stderr to itself."""
    logging.getLogger("outrider").info(line)


def printable(text: str) -> str:
    """Return the text on one line without control characters: it may quote a remote peer."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
