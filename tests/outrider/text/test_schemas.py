"""Schemas without keywords that ask for nothing: what they allow stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from outrider.text.tools.schemas import needed, written
from tests.support.refusals import assert_refused

STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"type": "object", "propertyNames": STRING}, {"type": "object"}),
        ({"items": {"uniqueItems": False, "items": True}}, {"items": {"items": True}}),
        ({"anyOf": [STRING | {"format": "path"}, {}]}, {"anyOf": [STRING, {}]}),
        ({"$defs": {"a": {"unevaluatedProperties": True}}}, {"$defs": {"a": {}}}),
    ],
)
def test_what_asks_for_nothing_is_left_out(given: Any, left: Any) -> None:
    assert needed(given) == left


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^a"}},
        {"uniqueItems": True},
        {"format": "date"},
        {"properties": {"propertyNames": STRING, "format": True}, "required": ["format"]},
        {"const": {"uniqueItems": False}},
        {"enum": [{"format": "path"}]},
        {"items": [STRING, False]},
    ],
)
def test_everything_else_stays(schema: dict[str, Any]) -> None:
    assert needed(schema) == schema
    assert json.loads(written(json.dumps(schema))) == schema


def test_what_is_no_json_is_refused() -> None:
    for text in ("{", "[" * 100_000):
        assert_refused(
            lambda text=text: written(text), ["the schema cannot be read"], InvalidRequest
        )
