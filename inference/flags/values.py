"""Types of values that flags of several commands take, with their bounds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator

from inference.command import nearest
from inference.flags.group import Shown


def comma_separated(given: object) -> object:
    """The parts of a text, which commas separate; anything else as it is."""
    if not isinstance(given, str):
        return given
    return tuple(part.strip() for part in given.split(",") if part.strip())


def among(known: Collection[str]) -> AfterValidator:
    """Check that every name is one of these."""

    def check(names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in known:
                raise ValueError(f"there are {', '.join(known)}{nearest(name, known)}")
        return names

    return AfterValidator(check)


File: TypeAlias = Annotated[str, Shown("FILE")]
Directory: TypeAlias = Annotated[str, Shown("DIR")]
ModelName: TypeAlias = Annotated[str, Shown("DIR_OR_NAME")]
Name: TypeAlias = Annotated[str, Shown("NAME")]
Region: TypeAlias = Annotated[str, Shown("REGION")]
Host: TypeAlias = Annotated[str, Shown("HOST")]
Count: TypeAlias = Annotated[int, Ge(1)]
Natural: TypeAlias = Annotated[int, Ge(0)]
Port: TypeAlias = Annotated[int, Ge(0), Le(65535), Shown("PORT")]
Seconds: TypeAlias = Annotated[float, Ge(0), Shown("SECONDS")]
Usd: TypeAlias = Annotated[float, Ge(0), Shown("USD")]
Watts: TypeAlias = Annotated[float, Ge(0), Shown("WATTS")]
Amount: TypeAlias = Annotated[float, Gt(0), Shown("USD")]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(comma_separated)]
NumberList: TypeAlias = Annotated[tuple[float, ...], BeforeValidator(comma_separated)]
Counts: TypeAlias = Annotated[tuple[Count, ...], BeforeValidator(comma_separated), Shown("N,...")]
