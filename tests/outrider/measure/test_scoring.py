"""Scores: numbers, and JSON under a schema."""

from __future__ import annotations

import json

import pytest

from outrider.measure.scoring import score
from outrider.measure.sets import Item

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("18", "First 3, then 15: **18**.", True),
        ("18", "It is $18.00", True),
        ("18", "18 or 19", False),
        ("18", "eighteen", False),
        ("1,200", "#### 1200 in 3 days", True),
        ("-5", "x = -5", True),
        (r"\frac{3}{4}", r"so \boxed{\dfrac{3}{4}} of 4", True),
        (r"\frac{3}{4}", r"\boxed{0.75}", True),
        (r"(3, \frac{\pi}{2})", r"\boxed{\left(3,\frac{\pi}{2}\right)}", True),
        ("7", r"7, or \boxed{8}", False),
        ("6", r"\boxed{6 \text{ cm}}", True),
        ("1", r"\boxed{1e999999999}", False),
        ("1", r"\boxed{1/0}", False),
        (r"\text{Ada}", r"\boxed{\text{Bob}}", False),
    ],
)
def test_the_box_counts_and_else_the_last_number(answer: str, text: str, right: bool) -> None:
    assert score(Item("s", "maths", "n", ("?",), answer=answer), text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [('{"n": 3}', True), ('```json\n{"n":\n3}\n```', True), ('{"n": "3"}', False), ("{", False)],
)
def test_json_is_right_where_it_keeps_to_the_schema(text: str, right: bool) -> None:
    assert score(Item("s", "json", "n", ("?",), schema=json.dumps(SCHEMA)), text) is right


def test_what_has_no_answer_is_not_scored() -> None:
    assert score(Item("s", "chat", "n", ("?",)), "text") is None
