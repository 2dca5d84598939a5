"""Dataclasses in JSON files: pydantic checks types and bounds, and errors name file and field.

    @dataclass(frozen=True)
    class Profile(Record):
        rows: Count
        seconds: Annotated[float, Field(gt=0)]

    profile = read_record(read_json(path, InvalidRequest), Profile)

Bounds are only checked when a file is read, not when code creates a record.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from inference.errors import OutriderError
from inference.files.json_file import GREATEST, LARGEST, Json, shown

T = TypeVar("T")


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
