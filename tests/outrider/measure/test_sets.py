"""Sets of prompts: the one that ships, and files of known formats."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.sampling import Grammar, GrammarKind
from inference.text.grammar import Grammars
from outrider.measure.sets import Item, read_set
from tests.support.pairs import STOP, VOCABULARY, tokenizer

KINDS = ("agent", "chat", "code", "edits", "json", "maths", "summaries")

FORMATS: dict[str, tuple[dict[str, Any], Item]] = {
    "our own": (
        {"name": "a", "kind": "json", "turns": ["One?", "Two?"], "schema": {"type": "integer"}},
        Item("f", "json", "a", ("One?", "Two?"), schema='{"type": "integer"}'),
    ),
    "HumanEval": (
        {"task_id": "H/1", "prompt": "def f():\n", "test": "def check(f): f()", "entry_point": "f"},
        Item("f", "code", "H/1", ("def f():\n",)),
    ),
    "MT-bench": (
        {"question_id": 3, "category": "writing", "turns": ["Write.", "Shorten."]},
        Item("f", "chat", "writing/3", ("Write.", "Shorten.")),
    ),
    "Spec-Bench": (
        {"question_id": 401, "category": "math_reasoning", "turns": ["How many?"]},
        Item("f", "math_reasoning", "math_reasoning/401", ("How many?",)),
    ),
    "GSM8K": (
        {"question": "How many?", "answer": "Many.\n#### 1,200"},
        Item("f", "maths", "1", ("How many?",)),
    ),
    "MATH-500": (
        {"problem": "1+1", "solution": "", "answer": "2", "unique_id": "t"},
        Item("f", "maths", "t", ("1+1",)),
    ),
}


def written(directory: Path, *rows: dict[str, Any]) -> Path:
    (directory / "f").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory / "f"


def test_the_small_set_has_ten_texts_of_each_kind_in_turn_and_schemas_that_are_grammars() -> None:
    items = read_set(None, None)
    assert Counter(item.kind for item in items) == dict.fromkeys(KINDS, 10)
    assert tuple(item.kind for item in items[:7]) == KINDS
    assert len({item.name for item in items}) == 70
    grammars = Grammars(tokenizer().to_str(), VOCABULARY, [STOP])
    for item in items:
        if item.kind == "json":
            assert grammars.check(Grammar(GrammarKind.JSON_SCHEMA, item.schema or ""))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_read_by_its_keys(tmp_path: Path, name: str) -> None:
    row, item = FORMATS[name]
    assert read_set(written(tmp_path, row), None) == [item]


def test_a_compressed_file_is_read_and_its_first_texts_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path, *({"question": f"{n}?", "answer": f"#### {n}"} for n in range(5)))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert [item.turns for item in read_set(path, 2)] == [("0?",), ("1?",)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "x"}], "text 1 has the keys text: needed are name and turns"),
        ([{"name": "a", "turns": ["x"]}] * 2, "two texts of the name a"),
        ([{"name": "a", "turns": "x"}], "turns"),
        ([{"question_id": 1, "category": "qa", "turns": None}], "turns"),
        (["x"], "no JSON object"),
    ],
)
def test_other_files_are_refused_with_what_is_needed(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_set(written(tmp_path, *rows), None)
    with pytest.raises(InvalidRequest, match=r"none\.jsonl cannot be read"):
        read_set(tmp_path / "none.jsonl", None)
