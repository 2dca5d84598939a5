"""JSON from models and clients: objects within bounds, and schemas without neutral keywords.

Grammars refuse some keywords even if they change nothing: zod writes that names are strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequest
from inference.files.json_file import deeper

MAX_DEPTH = 100
"""Maximum nesting of objects and lists. Python's own JSON functions fail near 1,000."""


def read_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text, and for nesting beyond MAX_DEPTH."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_deeply(value) else None


def nests_deeply(value: Any) -> bool:
    """Return whether objects and lists are nested beyond MAX_DEPTH."""
    return deeper(value, MAX_DEPTH)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "propertyNames": ({"type": "string"}, {}, True),
    "uniqueItems": (False,),
    "unevaluatedProperties": ({}, True),
    "unevaluatedItems": ({}, True),
    "format": ("path", "password", "binary"),  # any string has these
}
"""For each keyword, the values that any JSON satisfies."""

_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Keywords whose value maps names to schemas."""

_DATA = {"const", "enum", "default", "examples", "required"}
"""Keywords whose value is data, not a schema."""


def written(schema: Mapping[str, Any] | str | bool) -> str:
    """Return a schema as JSON for a grammar. Raises InvalidRequest for anything but a schema."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if value is not True and not isinstance(value, Mapping):
            raise InvalidRequest(
                f"a schema is a JSON object, or true for any JSON: got {value!r:.80}"
            )
        return json.dumps({} if value is True else needed(value))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema cannot be read: {error}") from error


def needed(schema: Any) -> Any:
    """Return a schema, or a list of schemas, without keywords that have no effect."""
    if isinstance(schema, list):
        return [needed(subschema) for subschema in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: _part(name, value)
        for name, value in schema.items()
        if value not in _NEUTRAL.get(name, ())
    }


def _part(name: str, value: Any) -> Any:
    if name in _DATA:
        return value
    if name in _NAMED and isinstance(value, Mapping):
        return {key: needed(subschema) for key, subschema in value.items()}
    return needed(value)
