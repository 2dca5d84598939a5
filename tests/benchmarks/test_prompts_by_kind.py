"""The list of prompts by kind, and their texts from the collections' files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.prompts import CHAT_FILE, CODE_FILE, LIST, read_prompts
from inference.errors import InvalidRequest

SOLVED = {
    "prompt": 'def twice(x):\n    """Double x."""\n',
    "canonical_solution": "    return 2 * x if x > 0 else x\n",
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.fixture
def collections(tmp_path: Path) -> Path:
    rows = [json.dumps({"task_id": f"HumanEval/{number}", **SOLVED}) for number in range(164)]
    with gzip.open(tmp_path / CODE_FILE, "wt", encoding="utf-8") as file:
        file.write("\n".join(rows))
    questions = [
        json.dumps({"question_id": number, "turns": [f"Question {number}?", "And then?"]})
        for number in range(81, 161)
    ]
    (tmp_path / CHAT_FILE).write_text("\n".join(questions), encoding="utf-8")
    return tmp_path


def test_the_list_has_twenty_of_each_kind_and_no_function_twice() -> None:
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    edited = [edit["function"] for edit in listed["edits"]]
    assert len({*listed["code"], *edited, *listed["agent"]}) == 60
    assert len(set(listed["chat"])) == 20


def test_kinds_take_turns(collections: Path) -> None:
    kinds = [prompt.kind for prompt in read_prompts(collections, 2)]
    assert kinds == ["code", "chat", "edits", "agent"] * 2


def test_texts_are_those_of_the_collections(collections: Path) -> None:
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    code, chat, edit, agent = read_prompts(collections, 1)
    assert (code.name, code.text) == (listed["code"][0], SOLVED["prompt"])
    assert chat.text == f"Question {listed['chat'][0]}?"
    assert listed["edits"][0]["with"] in edit.text
    assert "def twice(x):\n    return 2 * x if x > 0 else x" in edit.text
    assert "return 2 * x if x <= 0 else x" in agent.text
    assert "FAILED: assert twice(2) == 4" in agent.text
    assert "Double" not in edit.text + agent.text


@pytest.mark.parametrize("each", [0, 21])
def test_more_prompts_than_are_listed_are_refused(collections: Path, each: int) -> None:
    with pytest.raises(InvalidRequest, match="1 to 20 are listed"):
        read_prompts(collections, each)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"HumanEval\.jsonl\.gz"):
        read_prompts(tmp_path, 1)
