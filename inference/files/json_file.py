"""JSON files: values that know their place, so that an error names the file and the field.

    settings = read_json(path, InvalidRequest)
    rows = settings.field("rows").integer(minimum=1)

A dataclass whose types and bounds pydantic checks is read as a whole. Its bounds are not checked
when code creates it:

    @dataclass(frozen=True)
    class Profile(Record):
        rows: Count
        seconds: Annotated[float, Field(gt=0)]

    profile = read_record(read_json(path, InvalidRequest), Profile)

The caller chooses the error type. Values are checked to be small enough to compute with, finite,
and printable.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from inference.errors import OutriderError

P = ParamSpec("P")
T = TypeVar("T")

DEEPEST = 64
"""Maximum nesting depth of a file, below the depth at which recursive code fails."""

LARGEST = 2**31 - 1
"""Default maximum of integers."""

GREATEST = 1e300
"""Maximum absolute value of a number; sums and products of larger numbers overflow."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxdict = 4
_REPR.maxlevel = 2


@dataclass(frozen=True)
class Json:
    """A value of a JSON file. Methods that read the value raise `refusal` if it is invalid."""

    value: Any
    where: str  # the file and the field in it
    refusal: type[OutriderError]  # the error type for invalid values
    outermost: bool = True  # whether the value is the file's entire content

    def refuse(self, needed: str) -> NoReturn:
        """Raise `refusal` with the value, and with the description of a valid one."""
        raise self.refusal(f"{self.where} is {shown(self.value)}: {needed} is needed")

    @property
    def absent(self) -> bool:
        """Whether the value is null or the field is missing."""
        return self.value is None

    def field(self, name: str) -> Json:
        """Return a field of an object; null if the object has no such field."""
        return self._inner(self.dictionary().get(name), _spelt(name))

    def fields(self) -> dict[str, Json]:
        """Return all fields of an object, by name."""
        return {name: self.field(name) for name in self.dictionary()}

    def keys(self, needed: Collection[str]) -> Json:
        """Return this object after checking that it has exactly these fields."""
        names = self.dictionary().keys()
        missing, unknown = set(needed) - names, names - set(needed)
        if missing or unknown:
            flaws = [f"no {', '.join(sorted(missing))}"] * bool(missing)
            extras = [*sorted(map(_spelt, unknown))[:4], *["..."] * (len(unknown) > 4)]
            flaws += [f"unknown {', '.join(extras)}"] * bool(unknown)
            fields = ", ".join(needed)
            raise self.refusal(f"{self.where} has {' and '.join(flaws)}: its fields are {fields}")
        return self

    def items(self) -> list[Json]:
        """Return the items of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list")
        return [self._inner(item, f"[{index}]") for index, item in enumerate(self.value)]

    def map(self, convert: Callable[[Json], T]) -> tuple[T, ...]:
        """Return the items of a list, each converted by `convert`."""
        return tuple(convert(item) for item in self.items())

    def dictionary(self) -> dict[str, Any]:
        """Return an object as a dictionary with unchecked values."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return self.value

    def text(self) -> str:
        """Return a string without NUL that can be written as UTF-8."""
        if not isinstance(self.value, str) or "\0" in self.value or not _encodes(self.value):
            self.refuse("a text")
        return self.value

    def line(self) -> str:
        """Return a non-empty string of printable characters, which can appear in a message."""
        if not isinstance(self.value, str) or not self.value or not self.value.isprintable():
            self.refuse("a line of text")
        return self.value

    def integer(self, minimum: int = 0, maximum: int = LARGEST) -> int:
        """Return an integer within the bounds; true and false are invalid."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.refuse(f"an integer from {minimum} to {maximum}")
        return value

    def number(self) -> float:
        """Return a finite number up to GREATEST in absolute value."""
        value = self.value
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not abs(value) <= GREATEST:
            self.refuse("a number")
        return float(value)

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def make(self, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `build`, and raise its OutriderError or ValueError as `refusal` with the place."""
        try:
            return build(*args, **kwargs)
        except (OutriderError, ValueError) as error:
            raise self.refusal(f"{self.where}: {error}") from error

    def _inner(self, value: Any, name: str) -> Json:
        if self.outermost:
            return Json(value, f"{self.where} field {name}", self.refusal, False)
        joint = "" if name.startswith("[") else "."
        return Json(value, f"{self.where}{joint}{name}", self.refusal, False)


def read_json(path: Path, refusal: type[OutriderError]) -> Json:
    """Read the value in a JSON file. Raises `refusal` if it cannot be read or parsed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror}") from error
    return parse_json(content, path, refusal)


def parse_json(content: bytes, path: Path, refusal: type[OutriderError]) -> Json:
    """Parse the content of a JSON file. Raises `refusal` if it cannot be parsed."""
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
    """Format a value for an error message, on one line and shortened."""
    return _REPR.repr(value)


def _too_deep(path: Path) -> str:
    return f"{path} is not JSON that is read here: it nests more than {DEEPEST} levels deep"


def deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper than `levels`, found without recursion."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        inner = [value for outer in layer for value in _children(outer)]
        layer = [value for value in inner if isinstance(value, list | Mapping)]
        if not layer:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
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


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL is needed")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable characters are needed")
    return text


Count = Annotated[int, Field(ge=1, le=LARGEST)]
Size = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-GREATEST, le=GREATEST)]
Positive = Annotated[float, Field(gt=0, le=GREATEST)]
Text = Annotated[str, AfterValidator(_without_nul)]
Line = Annotated[str, Field(min_length=1), AfterValidator(_printable)]


class Record:
    """Base of dataclasses stored in files. Unknown fields, NaN and infinity are rejected."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def read_record(raw: Json, kind: type[T]) -> T:
    """Return the value as a record of type `kind`. Raises `raw.refusal` if it is invalid."""
    try:
        record: T = _adapter(cast(Any, kind)).validate_json(json.dumps(raw.value), strict=True)
    except ValidationError as error:
        raise _refusal(raw, error.errors(include_url=False)[0]) from error
    return record


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a type, cached because creating one takes milliseconds."""
    return TypeAdapter(kind)


def _refusal(raw: Json, error: Any) -> OutriderError:
    """Convert a pydantic error to `raw.refusal`, with place, value, and what is valid."""
    *outer, last = error["loc"] or (None,)
    if error["type"] == "missing":
        return raw.refusal(f"{_place(raw, outer).where} has no {last}")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return raw.refusal(f"{_place(raw, outer).where} has an unknown field {shown(last)}")
    place = _place(raw, error["loc"])
    if error["type"] == "value_error":
        return raw.refusal(f"{place.where}: {error['ctx']['error']}")
    needed = error["msg"].replace("Input should be", "it should be", 1)
    if error["type"] == "json_invalid":  # a lone surrogate, which Python's json accepts
        return raw.refusal(f"{place.where} is not JSON that is read here: {needed}")
    if last == "[key]":
        return raw.refusal(f"{place.where} has a field {shown(outer[-1])}: {needed}")
    return raw.refusal(f"{place.where} is {shown(place.value)}: {needed}")


def _place(raw: Json, steps: Any) -> Json:
    """Return the value at a path of field names and indices; for an object's key, the object."""
    steps = steps[:-2] if steps and steps[-1] == "[key]" else steps
    for step in steps:
        raw = raw.items()[step] if isinstance(step, int) else raw.field(str(step))
    return raw
