"""Types of flag values, with their bounds, for several commands."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator

from inference.command import nearest
from inference.flags.group import Metavar


def comma_separated(value: object) -> object:
    """Split a string at commas; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    return tuple(word.strip() for word in value.split(",") if word.strip())


def among(names: Collection[str]) -> AfterValidator:
    """Return a validator that every name is one of `names`."""

    def check(values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if value not in names:
                raise ValueError(f"there are {', '.join(names)}{nearest(value, names)}")
        return values

    return AfterValidator(check)


File: TypeAlias = Annotated[str, Metavar("FILE")]
Directory: TypeAlias = Annotated[str, Metavar("DIR")]
ModelName: TypeAlias = Annotated[str, Metavar("DIR_OR_NAME")]
Name: TypeAlias = Annotated[str, Metavar("NAME")]
Region: TypeAlias = Annotated[str, Metavar("REGION")]
Host: TypeAlias = Annotated[str, Metavar("HOST")]
Count: TypeAlias = Annotated[int, Ge(1)]
Natural: TypeAlias = Annotated[int, Ge(0)]
Port: TypeAlias = Annotated[int, Ge(0), Le(65535), Metavar("PORT")]
Seconds: TypeAlias = Annotated[float, Ge(0), Metavar("SECONDS")]
Usd: TypeAlias = Annotated[float, Ge(0), Metavar("USD")]
Watts: TypeAlias = Annotated[float, Ge(0), Metavar("WATTS")]
Amount: TypeAlias = Annotated[float, Gt(0), Metavar("USD")]
Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(comma_separated)]
NumberList: TypeAlias = Annotated[tuple[float, ...], BeforeValidator(comma_separated)]
Counts: TypeAlias = Annotated[tuple[Count, ...], BeforeValidator(comma_separated), Metavar("N,...")]
