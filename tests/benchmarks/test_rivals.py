"""The comparison with other engines on the embedded pair: equal texts, and figures that add up. No
arm of llama.cpp's server is played.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.repository import ROOT, run_module

PAIR = [str(ROOT / "inference/data" / name) for name in ("target", "draft")]
KINDS = ["code", "chat", "edits", "agent"]
TOKENS = 16

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Answers to one prompt of each kind."""
    folder = tmp_path_factory.mktemp("rivals")
    rows = [{"name": kind, "kind": kind, "turns": [f"Some {kind}.", "And then?"]} for kind in KINDS]
    (folder / "set.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    flags = {
        "file": folder / "set.jsonl",
        "out": folder,
        "tokens": TOKENS,
        "length": 512,
        "threads": 1,
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    run_module("benchmarks.rivals", "--dtype", "float32", *given, "--safetensors", ",".join(PAIR))
    lines = (folder / "rivals.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_all_arms_make_the_same_text_of_a_prompt(answers: list[dict[str, Any]]) -> None:
    assert [prompt["kind"] for prompt in answers] == KINDS
    for prompt in answers:
        assert len(prompt["made"]) == 8
        assert len({tuple(made["ids"]) for made in prompt["made"].values()}) == 1


def test_a_plain_arm_makes_a_pass_for_each_token_and_a_drafting_one_fewer(
    answers: list[dict[str, Any]],
) -> None:
    for prompt in answers:
        for name, made in prompt["made"].items():
            later = made["tokens"] - made["first"]
            if name in ("transformers", "outrider"):
                assert (made["first"], made["passes"]) == (1, later)
            assert made["passes"] <= later
            assert made["tokens"] == len(made["ids"]) <= TOKENS
            assert 0 < made["first_seconds"] <= made["seconds"]
