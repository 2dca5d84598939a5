"""Why neuronx-cc failed on a graph, read from its output.

The format is not documented. It is read as compiler 2.22 wrote it in published logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from inference.command import say
from inference.errors import BadArtifact

T = TypeVar("T")

_ERRORS = (r"\[NCC_\w+\].*", r"ERROR.*", r".*[Ee]rror:.*", r".*Too many instructions.*")
"""The lines that say most about why a compiler failed, the best first."""
_REASON = re.compile(r"NCC_\w+|Too many instructions")
_LONGEST = 300  # characters of an error


class CompilerDied(BadArtifact):
    """A compiler that ended and gave no reason: it was killed, or crashed."""


def gave_reason(text: str) -> bool:
    """Whether a failed compiler's output names a reason, for which it would fail again."""
    return _REASON.search(text) is not None


def once_more(compile_graph: Callable[[], T]) -> T:
    """Compile a graph. Where the compiler dies without a reason, try it a second time."""
    try:
        return compile_graph()
    except CompilerDied as died:
        say(f"{died}. It gave no reason: it is tried once more")
        return compile_graph()


def first_error(text: str) -> str:
    """The line of a failed compiler's output that says most about why."""
    for pattern in _ERRORS:
        if match := re.search(pattern, text):
            return match[0].strip()[:_LONGEST]
    lines = text.split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "no output")
