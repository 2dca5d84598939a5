"""Values of a JSON file with their place, so that an error names the file and the field.

    settings = read_json(path, InvalidRequest)
    rows = settings.field("rows").integer(least=1)

The caller chooses the error type for bad files. A value read here has the requested type, is
small enough to compute with, is not NaN or infinite, and can be printed.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from inference.errors import OutriderError

P = ParamSpec("P")
T = TypeVar("T")

DEEPEST = 64
"""Maximum nesting levels of a file; recursive code fails at many more."""

LARGEST = 2**31 - 1
"""The largest integer that is accepted, unless the caller gives another bound."""

GREATEST = 1e300
"""The largest absolute value of a number; sums and products of larger ones overflow."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxdict = 4
_REPR.maxlevel = 2


@dataclass(frozen=True)
class Json:
    """A value of a JSON file. Every method that reads it raises `refusal` for an invalid value."""

    value: Any
    where: str  # the file, and the field in it
    refusal: type[OutriderError]  # the error that bad values raise
    outermost: bool = True  # the file's whole value

    def refuse(self, needed: str) -> NoReturn:
        """Raise `refusal` with the value and what is needed."""
        raise self.refusal(f"{self.where} is {shown(self.value)}: {needed} is needed")

    @property
    def absent(self) -> bool:
        """Whether the value is null or the field is missing."""
        return self.value is None

    def field(self, name: str) -> Json:
        """A field of an object; null where the object has no such field."""
        return self._inner(self.dictionary().get(name), _spelt(name))

    def fields(self) -> dict[str, Json]:
        """All fields of an object, by name."""
        return {name: self.field(name) for name in self.dictionary()}

    def keys(self, needed: Collection[str]) -> Json:
        """This object, after a check that it has these fields and no others."""
        names = self.dictionary().keys()
        missing, unknown = set(needed) - names, names - set(needed)
        if missing or unknown:
            parts = [f"no {', '.join(sorted(missing))}"] * bool(missing)
            named = [*sorted(map(_spelt, unknown))[:4], *["..."] * (len(unknown) > 4)]
            parts += [f"unknown {', '.join(named)}"] * bool(unknown)
            fields = ", ".join(needed)
            raise self.refusal(f"{self.where} has {' and '.join(parts)}: its fields are {fields}")
        return self

    def items(self) -> list[Json]:
        """The items of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list")
        return [self._inner(each, f"[{index}]") for index, each in enumerate(self.value)]

    def each(self, read: Callable[[Json], T]) -> tuple[T, ...]:
        """The items of a list, each converted by `read`."""
        return tuple(read(item) for item in self.items())

    def dictionary(self) -> dict[str, Any]:
        """An object as a dict, with unchecked values."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return self.value

    def text(self) -> str:
        """A string without NUL that can be written as UTF-8."""
        if not isinstance(self.value, str) or "\0" in self.value or not _encodes(self.value):
            self.refuse("a text")
        return self.value

    def line(self) -> str:
        """A string of one or more printable characters, which may appear in a message."""
        if not isinstance(self.value, str) or not self.value or not self.value.isprintable():
            self.refuse("a line of text")
        return self.value

    def integer(self, least: int = 0, most: int = LARGEST) -> int:
        """An integer within the bounds; not true or false."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(f"an integer from {least} to {most}")
        return value

    def number(self) -> float:
        """A finite number up to GREATEST in absolute value."""
        value = self.value
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not abs(value) <= GREATEST:
            self.refuse("a number")
        return float(value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def make(self, build: Callable[P, T], *parts: P.args, **named: P.kwargs) -> T:
        """Call `build`; an OutriderError or ValueError becomes `refusal` with file and field."""
        try:
            return build(*parts, **named)
        except (OutriderError, ValueError) as error:
            raise self.refusal(f"{self.where}: {error}") from error

    def _inner(self, value: Any, name: str) -> Json:
        if self.outermost:
            return Json(value, f"{self.where} field {name}", self.refusal, False)
        joint = "" if name.startswith("[") else "."
        return Json(value, f"{self.where}{joint}{name}", self.refusal, False)


def read_json(path: Path, refusal: type[OutriderError]) -> Json:
    """The value in a JSON file. Raises `refusal` when the file cannot be read or parsed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror}") from error
    return parse_json(content, path, refusal)


def parse_json(content: bytes, path: Path, refusal: type[OutriderError]) -> Json:
    """The value in the content of a JSON file. Raises `refusal` when it cannot be parsed."""
    try:
        value = json.loads(content.decode())
    except UnicodeDecodeError as error:
        at = f"{error.reason} at byte {error.start}"
        raise refusal(f"{path} is not JSON: it is not UTF-8 ({at})") from error
    except json.JSONDecodeError as error:
        raise refusal(f"{path} is not JSON: {error}") from error
    except ValueError as error:
        what = "is not JSON that is read here: a number in it has too many digits"
        raise refusal(f"{path} {what}") from error
    except RecursionError as error:
        raise refusal(_too_deep(path)) from error
    if deeper(value, DEEPEST):
        raise refusal(_too_deep(path))
    return Json(value, str(path), refusal)


def shown(value: Any) -> str:
    """A value for an error message: on one line, and shortened."""
    return _REPR.repr(value)


def _too_deep(path: Path) -> str:
    return f"{path} is not JSON that is read here: it nests more than {DEEPEST} levels deep"


def deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper than `levels`. Uses no recursion."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        inner = [value for outer in layer for value in _children(outer)]
        layer = [value for value in inner if isinstance(value, list | dict)]
        if not layer:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spelt(name: str) -> str:
    return name if name.isidentifier() else shown(name)
