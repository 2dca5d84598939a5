"""A benchmark keeps each text as it is made, goes on after an end in the middle, and compares runs
by pairs. Its prompts are a set that ships, or files of known formats.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.files.writing import locked
from inference.sampling import Grammar, GrammarKind
from inference.text.grammar import Grammars
from outrider.cli import main
from outrider.measure.journal import NAME, TextKey, opened, plan_of, read_run
from outrider.measure.run import AGAIN
from outrider.measure.sets import Item, read_set
from outrider.models.loading import find_tokenizer
from outrider.options.roles import TargetRole
from tests.support.commands import Ended, Run
from tests.support.pairs import STOP, VOCABULARY, tokenizer
from tests.support.refusals import assert_refused

PROMPTS = [
    {"kind": "code", "name": "queue", "turns": ["class Queue:"]},
    {"kind": "chat", "name": "two turns", "turns": ["import os", "import sys"], "system": "# x"},
    {"kind": "code", "name": "no room", "turns": ["def f(x):\n    return x\n" * 300]},
]
SERVED = TargetRole(port=0, batch=1)
MADE = ("kind", "arm", "prompts", "texts", "tokens", "compared", "equal")


@pytest.fixture(scope="module")
def words(port: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a small run, without its --out."""
    file = tmp_path_factory.mktemp("prompts") / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)))
    flags = ["--max_new_tokens", "6", "--num_runs", "1", "--preset", "hybrid,suffix"]
    return ["bench", "--target_host", f"127.0.0.1:{port}", "--file", str(file), *flags]


Whole = tuple[Path, Ended]


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The directory of a run that was not interrupted, and what it printed."""
    directory, out, err = tmp_path_factory.mktemp("whole"), StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main([*words, "--out", str(directory)]) == 0
    return directory, Ended(0, out.getvalue(), err.getvalue())


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def made(directory: Path) -> list[dict[str, Any]]:
    """The parts of the figures that no clock changes."""
    return [{name: row[name] for name in MADE} for row in summary(directory)["rows"]]


def texts(directory: Path) -> dict[TextKey, list[int]]:
    run = read_run(directory / NAME)
    assert run is not None
    return {key: text["token_ids"] for key, text in run.texts.items()}


def test_a_run_that_ended_in_a_line_goes_on_to_the_summary_of_an_uninterrupted_one(
    whole: Whole, words: list[str], tmp_path: Path, run: Run
) -> None:
    kept = b"".join((whole[0] / NAME).read_bytes().splitlines(keepends=True)[:5])
    assert kept.count(b'{"text"') == 3
    (tmp_path / NAME).write_bytes(kept + b'{"text": {"set": "ow')
    assert run(*words, "--out", tmp_path).code == 0
    whole_run = (tmp_path / NAME).read_bytes()
    assert whole_run.startswith(kept)
    assert made(tmp_path) == made(whole[0])
    assert texts(tmp_path) == texts(whole[0])
    rows = made(tmp_path)
    arms = ["target-only", AGAIN, "hybrid", "suffix"]
    assert [row["arm"] for row in rows if row["kind"] == "chat"] == arms
    assert all(row["equal"] == row["compared"] == row["texts"] > 0 for row in rows)
    assert run(*words, "--out", tmp_path).code == 0
    assert (tmp_path / NAME).read_bytes() == whole_run


def test_a_target_behind_an_emulated_link_is_where_its_own_address_says(
    words: list[str], port: str, tmp_path: Path, run: Run
) -> None:
    """0.0.0.0 leads to this machine, too, without saying so."""
    flags = ["--max_new_tokens", "2", "--num_runs", "1", "--preset", "suffix", "--samples", "1"]
    for host, shared in (("127.0.0.1", True), ("0.0.0.0", False)):
        out = tmp_path / host
        reached = ["--target_host", f"{host}:{port}", "--insecure", "--rtt", "1", "--out", out]
        assert run(*words, *flags, *reached).code == 0
        assert summary(out)["starts"][0]["shared"] is shared


def test_a_second_turn_follows_the_arms_own_answer_and_a_long_prompt_is_left_out(
    whole: Whole,
) -> None:
    directory, ended = whole
    found = read_run(directory / NAME)
    assert found is not None
    tokenizer = find_tokenizer(None, "draft")
    second = [(key, text) for key, text in found.texts.items() if key.turn == 1]
    assert len(second) == 4
    for key, text in second:
        said = ["# x", "import os", found.texts[key._replace(turn=0)]["text"], "import sys"]
        roles = ["system", "user", "assistant", "user"]
        chat = [{"role": role, "content": one} for role, one in zip(roles, said, strict=True)]
        assert text["prompt_tokens"] == len(tokenizer.encode_chat(chat))
    assert {key.name for key in found.texts} == {"queue", "two turns"}
    assert "left out: code no room, turn 1: " in ended.err
    assert "1 of 3 prompts are left out" in " ".join(ended.out.split())
    assert "64 % of an answer repeats its prompt" in ended.out
    assert "Too few for a claim: 1 chat, 1 code" in ended.out
    assert {path.name for path in directory.iterdir()} >= {"report.md", "report.json"}


def test_a_run_that_cannot_begin_or_go_on_is_refused(
    whole: Whole, words: list[str], tmp_path: Path, run: Run
) -> None:
    beside = ["--draft beside", "no draft beside it", "fused_target"]
    for change, directory, shown in (
        (["--max_new_tokens", "7"], whole[0], ["other settings", "max_new_tokens 6, then 7"]),
        (["--samples", "1"], whole[0], ["other settings", "samples null, then 1"]),
        (["--preset", "eagle_sd"], tmp_path / "new", beside),
    ):
        run(*words, *change, "--out", directory).assert_failed(*shown)
    words = [*words, "--out", str(tmp_path)]
    with locked(tmp_path):
        run(*words).assert_failed(f"{tmp_path} is being written by process {os.getpid()} on ")
    plan, start = map(json.loads, (whole[0] / NAME).read_text().splitlines()[:2])
    start["start"]["models"]["target"] = "another"
    (tmp_path / NAME).write_text(f"{json.dumps(plan)}\n{json.dumps(start)}\n")
    run(*words).assert_failed("other models", 'target "another", then')
    del plan["run"]["prompts"]["own.jsonl/chat/two turns"]
    (tmp_path / NAME).write_text(f"{json.dumps(plan)}\n{json.dumps(start)}\n")
    run(*words).assert_failed("other prompts", "own.jsonl/chat/two turns")


def test_a_run_is_resumed_or_replaced_where_that_is_asked_for(tmp_path: Path) -> None:
    plan, other = plan_of({"a": 1}, []), plan_of({"a": 2}, [])
    with opened(tmp_path, plan) as journal:
        journal.write("start", {"load": 1})
        assert (tmp_path / NAME).read_bytes().endswith(b'"start": {"load": 1}}\n')  # at once
    assert_refused(opened(tmp_path, other).__enter__, ["a 1, then 2"])
    with opened(tmp_path, plan) as journal:
        assert journal.starts == [{"load": 1}]
    with opened(tmp_path, other, anew=True) as journal:
        assert journal.starts == []
    found = read_run(tmp_path / NAME)
    assert found is not None
    assert found.plan == other


def test_a_damaged_line_costs_itself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / NAME
    lines = [b'{"run": {"settings": {}, "prompts": {}}}', b"\0" * 4096, b'{"text": {"set": 1}}']
    lines.append(b'{"start": {"load": 1}}')
    path.write_bytes(b"\n".join([*lines, b'{"text": {"set": "ow']))
    found = read_run(path)
    assert found is not None
    assert found.starts == [{"load": 1}]
    told = capsys.readouterr().err
    assert f"{NAME} line 2 is damaged" in told
    assert f"{NAME} line 3 is damaged" in told
    path.write_bytes(lines[1] + b"\n")
    assert_refused(lambda: read_run(path), [f"{NAME} line 1 is no line of a run"])


@pytest.mark.extended
def test_the_small_set_is_measured_on_the_embedded_pair(tmp_path: Path, run: Run) -> None:
    assert run("bench", "--max_new_tokens", "12", "--out", tmp_path).code == 0
    rows = made(tmp_path)
    assert len({row["kind"] for row in rows}) == 8  # all together, too
    assert all(row["equal"] == row["compared"] == row["texts"] for row in rows)


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
