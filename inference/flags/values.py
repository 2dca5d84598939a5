"""Types of values that flags of several commands take, with their bounds."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le

from inference.flags.group import Shown

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
Price: TypeAlias = Annotated[float, Gt(0), Shown("USD")]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
