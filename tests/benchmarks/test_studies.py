"""Studies at a small size: what they find holds, and figures add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.times_file import find_profile
from tests.support.repository import ROOT, run_module

pytestmark = pytest.mark.extended

PAIR = [str(ROOT / "inference/data" / name) for name in ("target", "draft")]


# --- laws of time


def test_a_dozen_laws_of_time_that_nobody_measured_break_no_promise() -> None:
    said = run_module("benchmarks.floor", "--dozen").splitlines()
    assert said[-1] == "0 of 12 cells miss the promise"


def test_a_world_without_a_trap_costs_nothing_and_a_text_is_played_to_its_end() -> None:
    worlds = "liar,first-start,shared-useless"
    heads, *free, shared = run_module(
        "benchmarks.floor", "--worlds", "--world", worlds, "--profile", "first"
    ).splitlines()
    assert heads.split() == ["world", "profile", "seed", "64", "256", "worst", "64"]
    assert all(float(share) > 0.95 for line in free for share in line.split()[3:])
    assert all(0.9 < float(share) <= 1.0 for share in shared.split()[3:])


# --- garbage


def garbage_collections(file: Path, *flags: str) -> int:
    few = ["--sessions", "64", "--nodes", "4", "--forwards", "4", "--json", file, *flags]
    run_module("benchmarks.engine", *few)
    count: int = json.loads(file.read_text(encoding="utf-8"))[0]["garbage collections"]
    return count


def test_a_targets_process_collects_garbage_rarely(tmp_path: Path) -> None:
    often = garbage_collections(tmp_path / "often.json", "--collect_often")
    assert 4 * garbage_collections(tmp_path / "rarely.json") < often


# --- regret

LEAST_SPEED = {
    **{"20:useless:0": 0.98, "300:useless:0": 0.98},
    **{"0:mid:0": 2.6, "20:mid:0": 2.3, "80:mid:0": 1.74, "300:mid:0": 1.12},
    **{"20:mid:0.8": 2.3, "80:mid:0.8": 1.6, "20:misses:0": 1.99, "80:misses:0.8": 1.38},
    **{"20:mid:0:x0.25": 3.5, "40:mid:0.8:fast": 1.16},
}
"""Times as fast as target-only on one short text: some 6 % below what was measured."""


def test_the_dozen_on_one_text_is_as_fast_as_it_was_and_nobody_waits(tmp_path: Path) -> None:
    file = tmp_path / "dozen.json"
    flags = ["--dozen", "--texts", "1", "--tokens", "64", "--json", str(file)]
    assert "Below 0.98 of target-only: in no cell" in run_module("benchmarks.regret", *flags)
    dozen: dict[str, dict[str, dict[str, Any]]] = {
        cell["setting"]: {
            arm: dict(zip(cell["columns"], rows[0], strict=True))
            for arm, rows in cell["arms"].items()
        }
        for cell in json.loads(file.read_text(encoding="utf-8"))
    }
    assert dozen.keys() == LEAST_SPEED.keys()
    forward = find_profile("llama-3.1-8b-trn1.2xlarge-measured").seconds(1, 1, 256)
    for cell, arms in dozen.items():
        alone, growing = arms["target-only"], arms["growing"]
        seconds = forward / 2 if cell.endswith(":fast") else forward
        token_seconds = alone["seconds"] / alone["tokens"]
        assert token_seconds / (growing["seconds"] / growing["tokens"]) >= LEAST_SPEED[cell], cell
        assert token_seconds == pytest.approx(seconds, rel=2e-3), cell
        assert alone["forwards"] == alone["nodes"] == alone["tokens"], cell
        assert alone["calls"] == alone["proposed"] == 0, cell
        for arm in ("growing", "hybrid"):
            forwards = arms[arm]["forwards"]
            assert forwards - 1 < arms[arm]["seconds"] / seconds < 1.25 * forwards, cell
    near, far = (dozen[f"{rtt}:useless:0"]["target-only"]["whole_seconds"] for rtt in (20, 300))
    assert far - near == pytest.approx(0.28, abs=1e-4)  # the round trip, once


PROFILE = "llama-3.1-8b-trn2.3xlarge-published"


def test_drafts_make_recorded_texts_faster_for_every_user(tmp_path: Path) -> None:
    flags = ["--texts", tmp_path / "texts", "--each", "4", "--tokens", "32", "--profiles", PROFILE]
    shown = run_module("benchmarks.regret.recorded", "--pair", ",".join(PAIR), *flags)
    lines = [line.strip("| ").split(" | ") for line in shown.splitlines() if PROFILE in line]
    cells = {(int(line[1]), line[2]): line[3:] for line in lines if len(line) > 3}
    for users, prompts_of_others in ((1, 0.01), (4, 0.25)):
        rate, _, _, token_ms, *counts = cells[users, "target-only"]
        expected = find_profile(PROFILE).seconds(users, 1, 256)
        assert float(token_ms) == pytest.approx(1e3 * expected, rel=prompts_of_others)
        assert counts == ["1.00", "1.0", "0.00"]  # tokens, nodes and calls of a pass
        assert float(rate) < users / expected  # the prompts take their time, too
        _, speed, least, *_ = cells[users, "hybrid"]
        assert float(speed.removesuffix("x")) > 1.5
        assert float(least.removesuffix("x")) >= 0.98


# --- other engines


def test_all_engines_generate_the_same_text_from_its_prompt_alone(tmp_path: Path) -> None:
    """Of llama.cpp's server, none is played."""
    kinds = ("code", "chat")
    prompts = [{"name": kind, "kind": kind, "turns": [f"Some {kind}."]} for kind in kinds]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    flags = ["--target_model", PAIR[0], "--draft_model", PAIR[1], "--dtype", "float32"]
    flags += ["--preset", "hybrid", "--file", str(tmp_path / "set.jsonl"), "--out", str(tmp_path)]
    flags += ["--max_new_tokens", "16", "--threads", "1", "--rival_threads", "1"]
    run_module("benchmarks.rivals", "--transformers", *flags)
    lines = map(json.loads, (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines())
    texts = [line["text"] for line in lines if "text" in line]
    assert len({text["arm"] for text in texts}) == 7
    for kind in kinds:
        made = [tuple(text["token_ids"]) for text in texts if text["kind"] == kind]
        assert (len(made), len(set(made))) == (7, 1)
    for text in texts:
        tokens = len(text["token_ids"])
        assert text["forwards"] <= tokens == sum(text["chunk_tokens"]) <= 16
        assert text["forwards"] == tokens or text["arm"] not in ("transformers", "target-only")
        assert 0 < text["time_to_first_token"] <= text["seconds"] == text["arrivals"][-1]
        assert text["reused_tokens"] <= 1, "keys of an earlier text"
