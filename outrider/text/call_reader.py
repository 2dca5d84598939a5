"""Reads calls of functions out of a text while the text comes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from outrider.text.stop_strings import begun

LONGEST_HEAD = 256
"""Characters in which a call must begin its arguments, else it is text."""

_HEAD = re.compile(
    r'\s*\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]+)"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_UNMARKED = ('{"name"', '{"type"')
"""Beginnings of a call that no mark announces."""


@dataclass(frozen=True)
class CallForm:
    """The way in which a family of models writes calls.

    mark: part of a chat template that has this form
    opening: announces a call, or a list of calls
    closing: ends each call; empty for none
    key: name of the arguments in a call
    listed: the calls stand in a JSON list behind one opening
    bare: a text that begins with a JSON object is a call, too; there is one call at most
    """

    mark: str
    opening: str
    closing: str = ""
    key: str = "arguments"
    listed: bool = False
    bare: bool = False


class CallPiece(NamedTuple):
    """A part of a call as it comes. The first part has the id and the name."""

    number: int
    arguments: str
    id: str = ""
    name: str = ""


class ToolCall(NamedTuple):
    """A call of a function. arguments: JSON, as far as it was made"""

    id: str
    name: str
    arguments: str


def add_piece(calls: list[ToolCall], piece: CallPiece) -> None:
    """Add a part of a call to the calls of a text."""
    if piece.name:
        calls.append(ToolCall(piece.id, piece.name, ""))
    calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + piece.arguments)


class CallReader:
    """Tells calls from what is said beside them, piece by piece.

    names: functions that may be called; a call of another one is text
    several: whether a text may have more than one call; later ones are dropped otherwise
    """

    def __init__(self, form: CallForm, names: frozenset[str], *, several: bool) -> None:
        self._form, self._names, self._several = form, names, several
        self._held, self._opened, self._calls = "", "", 0
        self._end = _ObjectEnd()
        self._state: Callable[[], str | CallPiece | None] = self._begin if form.bare else self._say

    def push(self, text: str) -> list[str | CallPiece]:
        """The parts that are certain with this piece of the text."""
        self._held += text
        parts = list[str | CallPiece]()
        while (part := self._state()) is not None:
            dropped = isinstance(part, CallPiece) and part.number > 0 and not self._several
            if part and not dropped:
                parts.append(part)
        return parts

    def finish(self) -> str:
        """The rest of the text. A call that has not said its name by now is left out."""
        rest, self._held = self._held, ""
        return "" if self._opened or self._state == self._between else rest

    # States: each returns a part, "" after a change of the state, or None to wait for more.

    def _begin(self) -> str | None:
        start = self._held.lstrip()
        if not start:
            return None
        self._state = self._head if start.startswith("{") else self._say
        return ""

    def _say(self) -> str | None:
        said, opening, rest = self._held.partition(self._form.opening)
        if opening:
            self._held, self._opened, self._state = rest, opening, self._head
            return said.rstrip()
        kept = len(said[: len(said) - begun(said, self._form.opening)].rstrip())
        self._held = said[kept:]
        return said[:kept] or None

    def _head(self) -> str | CallPiece | None:
        head = _HEAD.match(self._held)
        if head is None and self._may_be_a_call:
            return None
        if head is None or head[1] not in self._names:
            text, self._held, self._opened = self._opened + self._held, "", ""
            self._state = self._say
            return text
        self._held, self._opened = self._held[head.end() :], ""
        self._end, self._state = _ObjectEnd(), self._body
        self._calls += 1
        return CallPiece(self._calls - 1, "", new_call_id(), head[1])

    def _body(self) -> CallPiece | None:
        end = self._end.find(self._held)
        piece, self._held = self._held[:end], "" if end is None else self._held[end:]
        if end is not None:
            self._end, self._state = _ObjectEnd(1), self._tail
        return CallPiece(self._calls - 1, piece) if piece else None

    def _tail(self) -> str | None:
        end = self._end.find(self._held)
        self._held = "" if end is None else self._held[end:]
        if end is None:
            return None
        self._state = self._between
        return ""

    def _between(self) -> str | None:
        closing = self._form.closing
        self._held = self._held.lstrip(" \n\t\r],;")
        if closing and self._held.startswith(closing):
            self._held = self._held[len(closing) :]
            return ""
        if closing.startswith(self._held) or not self._held:
            return None
        again = self._held.startswith("{") and not closing
        self._state = self._head if again else self._say
        return ""

    @property
    def _may_be_a_call(self) -> bool:
        """Whether the text that is held, which is no head yet, may become one."""
        held, known = self._held.lstrip(" \n\t["), ("{",) if self._opened else _UNMARKED
        begins = "".join(held[:64].split())
        return len(held) <= LONGEST_HEAD and any(
            begins.startswith(one) or one.startswith(begins) for one in known
        )


def new_call_id() -> str:
    """An id of a call: nine letters and digits, which is the form that Mistral's templates take."""
    return uuid4().hex[:9]


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces.

    depth: of the first piece, in objects and lists
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def find(self, piece: str) -> int | None:
        """The place behind the object's end in this piece; None while the object goes on."""
        for place, sign in enumerate(piece):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = sign == "\\", sign != '"'
            elif sign == '"':
                self._quoted = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None
