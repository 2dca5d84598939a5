"""Separates function calls from streamed text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from outrider.text.json_values import read_object

MAX_HEAD = 256
"""Maximum characters of a call before its arguments; beyond this, arguments are not streamed."""

MAX_BUFFERED = 2**16
"""Maximum characters held back because they may be a call; beyond this they are text."""

_NAME = re.compile(r'\s*\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]*)("?)')
_HEAD = re.compile(_NAME.pattern + r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_MEMBER = re.compile(r'\s*,\s*("|$)')
_KEYS = tuple(f'"{key}"' for key in ("name", "arguments", "parameters", "function", "type", "id"))
"""Keys that a call may begin with."""


@dataclass(frozen=True)
class CallForm:
    """The format in which a family of models writes calls.

    mark: string that occurs in chat templates with this format
    opening: string before a call, or before a list of calls
    closing: string after each call; empty if there is none
    key: JSON key of a call's arguments
    listed: whether the calls are a JSON list after a single opening
    bare: whether output that begins with a JSON object is a call, too; then at most one call
    """

    mark: str
    opening: str
    closing: str = ""
    key: str = "arguments"
    listed: bool = False
    bare: bool = False


class CallPiece(NamedTuple):
    """A streamed part of a call. A call's first part has its id and its name."""

    number: int
    arguments: str
    id: str = ""
    name: str = ""


class ToolCall(NamedTuple):
    """A function call. arguments: JSON, perhaps cut off"""

    id: str
    name: str
    arguments: str


def add_piece(calls: list[ToolCall], piece: CallPiece) -> None:
    """Add a part to the call that it belongs to."""
    if piece.name:
        calls.append(ToolCall(piece.id, piece.name, ""))
    calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + piece.arguments)


class CallReader:
    """Separates calls from the text around them, piece by piece.

    A call is a JSON object with keys in any order. If the name comes first, the arguments are
    streamed; otherwise they are returned once the object is complete.

    names: functions that may be called; calls of other functions are treated as text
    several: whether several calls are allowed; if not, all but the first are dropped
    """

    def __init__(self, form: CallForm, names: frozenset[str], *, several: bool) -> None:
        self._form, self._names, self._several = form, names, several
        self._buffer, self._opened, self._calls = "", "", 0
        self._listed = self._unclosed = False  # in a list of calls; before a closing mark
        self._end, self._scanned = _ObjectEnd(), 0  # of the buffered object
        self._state: Callable[[], str | CallPiece | None] = self._begin if form.bare else self._say

    def push(self, text: str) -> list[str | CallPiece]:
        """Add a piece of text. Returns the parts that it completes: text, or parts of calls."""
        self._buffer += text
        fragments = list[str | CallPiece]()
        while (fragment := self._state()) is not None:
            dropped = isinstance(fragment, CallPiece) and fragment.number > 0 and not self._several
            if fragment and not dropped:
                fragments.append(fragment)
        if len(self._buffer) > MAX_BUFFERED:
            fragments.append(self._opened + self._buffer)
            self._buffer, self._opened, self._state = "", "", self._say
        return fragments

    def finish(self) -> str:
        """Return the rest of the text, including a call cut off before its arguments."""
        rest, self._buffer = self._opened + self._buffer, ""
        return "" if self._state in (self._tail, self._between) else rest

    # States: each returns a part, "" after changing the state, or None to wait for more text.

    def _begin(self) -> str | None:
        start = self._buffer.lstrip()
        if not start:
            return None
        return self._read_head("") if start.startswith("{") else self._go_on(self._say)

    def _say(self) -> str | None:
        text, opening, rest = self._buffer.partition(self._form.opening)
        end = len(text[: len(text) - begun(text, self._form.opening)].rstrip())
        if opening:
            end = len(text.rstrip())
            self._buffer = rest
            self._read_head(text[end:] + opening)
            return text[:end]
        self._buffer = text[end:]
        return text[:end] or None

    def _head(self) -> str | CallPiece | None:
        body = self._buffer.lstrip()
        listed = self._listed or body.startswith("[")
        body = body.removeprefix("[").lstrip()
        first, name = body[1:MAX_HEAD].lstrip(), _NAME.match(self._buffer[:MAX_HEAD])
        possible = name is None or self._may_name(name[1], complete=bool(name[2]))
        if not ("{".startswith(body[:1]) and _may_begin(first) and possible):
            text, self._opened = self._opened, ""
            self._state = self._say
            return text
        head = _HEAD.match(self._buffer[:MAX_HEAD])
        if head is not None:
            self._buffer = self._buffer[head.end() :]
            return self._call(head[1], "", listed, self._body)
        start = len(self._buffer) - len(body)
        self._scanned = max(self._scanned, start)
        end = self._end.find(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            return None
        end += self._scanned
        call = _read_call(self._buffer[start:end])
        if call is None or call[0] not in self._names:
            text, self._buffer = self._opened + self._buffer[:end], self._buffer[end:]
            self._opened, self._state = "", self._say
            return text
        self._buffer = self._buffer[end:]
        return self._call(*call, listed, self._between)

    def _may_name(self, name: str, *, complete: bool) -> bool:
        """Return whether this is a function's name; unless `complete`, its beginning suffices."""
        if complete:
            return name in self._names
        return any(function.startswith(name) for function in self._names)

    def _body(self) -> CallPiece | None:
        end = self._end.find(self._buffer)
        piece, self._buffer = self._buffer[:end], "" if end is None else self._buffer[end:]
        if end is not None:
            self._end, self._scanned, self._state = _ObjectEnd(1), 0, self._tail
        return CallPiece(self._calls - 1, piece) if piece else None

    def _tail(self) -> str | None:
        """Skip a call's members after the arguments."""
        rest = self._buffer.lstrip()
        if not rest:
            return None
        if not rest.startswith("}") and not _MEMBER.match(rest):
            return self._go_on(self._between)
        end = self._end.find(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            return None
        self._buffer = self._buffer[self._scanned + end :]
        return self._go_on(self._between)

    def _between(self) -> str | None:
        """Skip a call's closing mark, or the separator before the next call."""
        closing = self._form.closing if self._unclosed else ""
        again = self._listed or not self._form.closing
        rest = self._buffer.lstrip(" \n\t\r" + (",;]" if again else ""))
        gap = self._buffer[: len(self._buffer) - len(rest)]
        if closing.startswith(rest):
            return None
        if closing and rest.startswith(closing):
            self._buffer, self._unclosed, self._listed = rest[len(closing) :], False, False
            return ""
        if rest.startswith("{") and again and "]" not in gap:
            self._buffer = rest
            return self._read_head(gap)
        behind_list = gap.rpartition("]")[2] if self._listed else gap
        self._buffer, self._listed = behind_list + rest, False
        return self._go_on(self._say)

    def _go_on(self, state: Callable[[], str | CallPiece | None]) -> str:
        self._state = state
        return ""

    def _read_head(self, opened: str) -> str:
        """Continue with a possible call. opened: its opening, which is text if no call follows"""
        self._opened, self._end, self._scanned = opened, _ObjectEnd(), 0
        return self._go_on(self._head)

    def _call(
        self, name: str, arguments: str, listed: bool, state: Callable[[], str | CallPiece | None]
    ) -> CallPiece:
        """Begin a call, and continue with this state."""
        self._opened, self._listed, self._unclosed = "", listed, True
        self._end, self._state = _ObjectEnd(), state
        self._calls += 1
        return CallPiece(self._calls - 1, arguments, new_call_id(), name)


def _may_begin(first: str) -> bool:
    """Return whether a JSON object that begins like this may be a call."""
    return any(first.startswith(key) or key.startswith(first) for key in _KEYS)


def _read_call(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call; None if the text is no call. The arguments may
    be an object, an object's JSON in a string, null, or missing.
    """
    call = read_object(text) or {}
    inner = call.get("function")
    call = {**call, **inner} if isinstance(inner, dict) else call
    arguments = call.get("arguments", call.get("parameters"))
    if not isinstance(call.get("name"), str):
        return None
    if arguments is None or arguments == "":
        return call["name"], "{}"
    if isinstance(arguments, str):
        return (call["name"], arguments) if read_object(arguments) is not None else None
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def new_call_id() -> str:
    """Return a new call id: nine letters and digits, as Mistral's templates require."""
    return uuid4().hex[:9]


class _ObjectEnd:
    """Finds the end of a streamed JSON object.

    depth: how many objects and lists are open before the first piece
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def find(self, piece: str) -> int | None:
        """Return the position after the object's end in this piece; None if it has not ended."""
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


def begun(text: str, string: str) -> int:
    """Return how many characters at the end of the text are a proper prefix of the string."""
    longest = min(len(string) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
