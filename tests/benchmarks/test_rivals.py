"""The comparison with other engines on the embedded pair: equal texts, and figures that add up. No
arm of llama.cpp's server is played.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.support.repository import ROOT, run_module

PAIR = [str(ROOT / "inference/data" / name) for name in ("target", "draft")]
KINDS = ["code", "chat", "edits", "agent"]
TOKENS = 16
SOLVED = {
    "prompt": 'def twice(x):\n    """Double x."""\n',
    "canonical_solution": "    return 2 * x if x > 0 else x\n",
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """rivals.json of one prompt of each kind."""
    folder = tmp_path_factory.mktemp("rivals")
    rows = [json.dumps({"task_id": f"HumanEval/{number}", **SOLVED}) for number in range(164)]
    with gzip.open(folder / "HumanEval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows))
    questions = [
        json.dumps({"question_id": number, "turns": [f"Question {number}?", "And then?"]})
        for number in range(81, 161)
    ]
    (folder / "mt_bench.jsonl").write_text("\n".join(questions), encoding="utf-8")
    flags = {"prompts": folder, "out": folder, "tokens": TOKENS, "length": 512, "threads": 1}
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    run_module("benchmarks.rivals", "--dtype", "float32", *given, "--safetensors", ",".join(PAIR))
    made: dict[str, Any] = json.loads((folder / "rivals.json").read_text(encoding="utf-8"))
    return made


def test_all_arms_make_the_same_text_of_a_prompt(record: dict[str, Any]) -> None:
    assert [prompt["kind"] for prompt in record["prompts"]] == KINDS
    for prompt in record["prompts"]:
        assert len(prompt["made"]) == 8
        assert len({tuple(made["ids"]) for made in prompt["made"].values()}) == 1
    assert record["differing"] == [[]]


def test_a_plain_arm_makes_a_pass_for_each_token_and_a_drafting_one_fewer(
    record: dict[str, Any],
) -> None:
    for prompt in record["prompts"]:
        for name, made in prompt["made"].items():
            later = made["tokens"] - made["first"]
            if name in ("transformers", "outrider"):
                assert (made["first"], made["passes"]) == (1, later)
            assert made["passes"] <= later
            assert made["tokens"] == len(made["ids"]) <= TOKENS
            assert 0 < made["first_seconds"] <= made["seconds"]


def test_speeds_are_by_pairs_of_texts(record: dict[str, Any]) -> None:
    for prompt in record["prompts"]:
        plain, copies = (prompt["made"][name] for name in ("outrider", "outrider copies"))
        (speed,) = (
            figure["speeds"]
            for figure in record["figures"]
            if (figure["kind"], figure["arm"]) == (prompt["kind"], "outrider copies")
            if (figure["against"], figure["counted"]) == ("outrider", "with the prompt")
        )
        each = (made["seconds"] / made["tokens"] for made in (plain, copies))
        slow, fast = each
        assert speed == [pytest.approx(slow / fast)]
