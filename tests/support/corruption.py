"""Ways in which a JSON file goes bad: as a whole, and in any one of its values."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

Steps = tuple[str | int, ...]
"""Names and indices that lead to a value."""

_MARK = "the value that is replaced"

WHOLE: dict[str, bytes] = {
    "empty": b"",
    "half an object": b'{"a": ',
    "a list of nothing": b"[]",
    "an object of nothing": b"{}",
    "null": b"null",
    "a text": b'"text"',
    "a number": b"1",
    "10,000 digits": b"1" * 10_000,
    "1e999": b"1e999",
    "NaN": b"NaN",
    "NUL": b"\0" * 64,
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "100 lists": b"[" * 100 + b"]" * 100,
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}

VALUES: dict[str, str] = {
    "null": "null",
    "true": "true",
    "0": "0",
    "-1": "-1",
    "a half": "0.5",
    "2**31": str(2**31),
    "400 digits": "9" * 400,
    "10,000 digits": "9" * 10_000,
    "1e308": "1e308",
    "1e999": "1e999",
    "-Infinity": "-Infinity",
    "NaN": "NaN",
    "no text": '""',
    "a text": '"x"',
    "NUL": '"\\u0000"',
    "lines": '"one\\ntwo"',
    "half a character": '"\\ud800"',
    "a path out": '"../../x"',
    "a list": "[]",
    "an object": "{}",
    "a list of null": "[null]",
    "an object of null": '{"x": null}',
    "an object of half a character": '{"\\ud800\\n": 1}',
    "200 lists": "[" * 200 + "]" * 200,
    "5,000 lists": "[" * 5_000 + "]" * 5_000,
}
"""As JSON, since some of it cannot be written from Python's own values."""


def spoilt(content: Any, value: str) -> Iterator[tuple[Steps, bytes]]:
    """The content with one value replaced: each in turn, of lists the first and the last."""
    for steps in places(content):
        changed = copy.deepcopy(content)
        _at(changed, steps[:-1])[steps[-1]] = _MARK
        yield steps, json.dumps(changed).replace(json.dumps(_MARK), value, 1).encode()


def stripped(content: Any) -> Iterator[tuple[Steps, bytes]]:
    """The content without one of its values, for each place in it."""
    for steps in places(content):
        changed = copy.deepcopy(content)
        del _at(changed, steps[:-1])[steps[-1]]
        yield steps, json.dumps(changed).encode()


def places(content: Any) -> Iterator[Steps]:
    """Of all values within the content."""
    if isinstance(content, dict):
        names: list[str | int] = list(content)
    else:
        names = sorted({0, len(content) - 1}) if isinstance(content, list) and content else []
    for name in names:
        yield (name,)
        yield from ((name, *more) for more in places(content[name]))


def _at(content: Any, steps: Steps) -> Any:
    for step in steps:
        content = content[step]
    return content
