"""Records in JSON files: pydantic checks their types and bounds, and what is wrong with one is a
line that names file and field.

    @dataclass(frozen=True)
    class Profile(Record):
        rows: Count
        seconds: Annotated[float, Field(gt=0)]

    profile = read_record(read_json(path, InvalidRequest), Profile)

Bounds hold for what is read; what our own code makes is held to its types by mypy.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from inference.errors import OutriderError
from inference.json_file import GREATEST, LARGEST, Json, shown

T = TypeVar("T")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL is needed")
    return text


Count = Annotated[int, Field(ge=1, le=LARGEST)]
Size = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-GREATEST, le=GREATEST)]
Positive = Annotated[float, Field(gt=0, le=GREATEST)]
Text = Annotated[str, AfterValidator(_without_nul)]


class Record:
    """Base of the dataclasses that files hold: unknown fields, NaN and infinity are refused."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def read_record(raw: Json, kind: type[T]) -> T:
    """The value as a record; raises what the file's reader refuses bad files with."""
    try:
        record: T = _adapter(cast(Any, kind)).validate_json(json.dumps(raw.value), strict=True)
    except ValidationError as error:
        raise _refusal(raw, error.errors(include_url=False)[0]) from error
    return record


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once a kind: that takes milliseconds."""
    return TypeAdapter(kind)


def _refusal(raw: Json, error: Any) -> OutriderError:
    """The first of pydantic's errors as our sentence: the place, what was got, what is needed."""
    *outer, last = error["loc"] or (None,)
    if error["type"] == "missing":
        return raw.refusal(f"{_place(raw, outer).where} has no {last}")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return raw.refusal(f"{_place(raw, outer).where} has an unknown field {shown(last)}")
    place = _place(raw, error["loc"])
    if error["type"] == "value_error":
        return raw.refusal(f"{place.where}: {error['ctx']['error']}")
    needed = error["msg"].replace("Input should be", "it should be", 1)
    if error["type"] == "json_invalid":  # half a character: Python's reader takes it
        return raw.refusal(f"{place.where} is not JSON that is read here: {needed}")
    if last == "[key]":
        return raw.refusal(f"{place.where} has a field {shown(outer[-1])}: {needed}")
    return raw.refusal(f"{place.where} is {shown(place.value)}: {needed}")


def _place(raw: Json, steps: Any) -> Json:
    """The value that the steps lead to; of an object's name, the object."""
    steps = steps[:-2] if steps and steps[-1] == "[key]" else steps
    for step in steps:
        raw = raw.items()[step] if isinstance(step, int) else raw.field(str(step))
    return raw
