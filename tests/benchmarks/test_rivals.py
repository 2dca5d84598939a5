"""The comparison with other engines on the embedded pair: equal texts, and figures that add up. No
arm of llama.cpp's server is played.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.repository import ROOT, run_module

KINDS = ("code", "chat")
TOKENS = 16

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of one prompt of each kind by all arms."""
    folder = tmp_path_factory.mktemp("rivals")
    rows = [{"name": kind, "kind": kind, "turns": [f"Some {kind}."]} for kind in KINDS]
    (folder / "set.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    flags = {
        "target_model": ROOT / "inference/data/target",
        "draft_model": ROOT / "inference/data/draft",
        "dtype": "float32",
        "preset": "hybrid",
        "file": folder / "set.jsonl",
        "out": folder,
        "max_new_tokens": TOKENS,
        "threads": 1,
        "rival_threads": 1,
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    run_module("benchmarks.rivals", "--transformers", *given)
    lines = map(json.loads, (folder / "run.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["text"] for line in lines if "text" in line]


def test_all_arms_generate_the_same_text_of_a_prompt(texts: list[dict[str, Any]]) -> None:
    assert len({text["arm"] for text in texts}) == 7
    for kind in KINDS:
        made = [tuple(text["token_ids"]) for text in texts if text["kind"] == kind]
        assert len(made) == 7
        assert len(set(made)) == 1


def test_a_plain_arm_makes_a_forward_pass_for_each_token_and_a_drafting_one_fewer(
    texts: list[dict[str, Any]],
) -> None:
    for text in texts:
        tokens = len(text["token_ids"])
        assert text["forwards"] <= tokens == sum(text["chunk_tokens"]) <= TOKENS
        if text["arm"] in ("transformers", "target-only"):
            assert text["forwards"] == tokens
        assert 0 < text["time_to_first_token"] <= text["seconds"] == text["arrivals"][-1]


def test_no_arm_has_a_prompts_keys_from_an_earlier_text(texts: list[dict[str, Any]]) -> None:
    assert all(text["reused_tokens"] <= 1 for text in texts)
