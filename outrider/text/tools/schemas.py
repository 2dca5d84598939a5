"""JSON schemas as programs derive them from types, without keywords that ask for nothing.

Grammars refuse some keywords whatever they say: zod writes that names of properties are strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequest

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "propertyNames": ({"type": "string"}, {}, True),
    "uniqueItems": (False,),
    "unevaluatedProperties": ({}, True),
    "unevaluatedItems": ({}, True),
    "format": ("path", "password", "binary"),  # any string has these
}
"""Values of keywords that every JSON satisfies."""

_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Keywords that have a schema for each name."""

_DATA = {"const", "enum", "default", "examples", "required"}
"""Keywords whose values are no schemas."""


def written(schema: Mapping[str, Any] | str | bool) -> str:
    """A schema, or its JSON, as a grammar has it. Raises InvalidRequest for what is no schema."""
    try:
        read = json.loads(schema) if isinstance(schema, str) else schema
        if read is not True and not isinstance(read, Mapping):
            raise InvalidRequest(
                f"a schema is a JSON object, or true for any JSON: got {read!r:.80}"
            )
        return json.dumps({} if read is True else needed(read))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema cannot be read: {error}") from error


def needed(schema: Any) -> Any:
    """A schema, or a list of them, without what asks for nothing."""
    if isinstance(schema, list):
        return [needed(each) for each in schema]
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
        return {key: needed(each) for key, each in value.items()}
    return needed(value)
