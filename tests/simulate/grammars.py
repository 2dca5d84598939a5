"""The grammar of targets whose tokens are characters, checked before a simulation begins: a check
is another process.
"""

from __future__ import annotations

from functools import cache

from inference.text.grammar import Grammars
from tests.support.scripted import END, RULED, scripted_grammars

KINDS = END + 1
"""Tokens of such a target."""


@cache
def _checked() -> Grammars:
    grammars = scripted_grammars()
    assert RULED.grammar is not None
    grammars.check(RULED.grammar)
    return grammars


def grammars_of(kinds: int) -> Grammars | None:
    """Grammars of a target that chooses among so many tokens."""
    return _checked() if kinds == KINDS else None
