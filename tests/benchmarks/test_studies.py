"""Studies at a small size: what they find holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.times_file import find_profile
from tests.support.repository import ROOT, run_module

pytestmark = pytest.mark.extended


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


def garbage_collections(file: Path, *flags: str) -> int:
    few = ["--sessions", "64", "--nodes", "4", "--forwards", "4", "--json", file, *flags]
    run_module("benchmarks.engine", *few)
    count: int = json.loads(file.read_text(encoding="utf-8"))[0]["garbage collections"]
    return count


def test_a_targets_process_collects_garbage_rarely(tmp_path: Path) -> None:
    often = garbage_collections(tmp_path / "often.json", "--collect_often")
    assert 4 * garbage_collections(tmp_path / "rarely.json") < often


PROFILE = "llama-3.1-8b-trn2.3xlarge-published"
PAIR = ",".join(str(ROOT / "inference/data" / name) for name in ("target", "draft"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[str]]:
    """By users and arm: the cells of their line."""
    texts = tmp_path_factory.mktemp("recorded") / "texts.json"
    flags = ["--texts", texts, "--each", "4", "--tokens", "32", "--profiles", PROFILE]
    shown = run_module("benchmarks.regret.recorded", "--pair", PAIR, *flags)
    lines = [line.strip("| ").split(" | ") for line in shown.splitlines() if PROFILE in line]
    return {(int(cells[1]), cells[2]): cells[3:] for cells in lines if len(cells) > 3}


@pytest.mark.parametrize("users", [1, 4])
def test_the_target_alone_makes_a_token_of_every_user_in_a_pass(
    recorded: dict[tuple[int, str], list[str]], users: int
) -> None:
    rate, _, _, token_ms, tokens, nodes, calls = recorded[users, "target-only"]
    expected = find_profile(PROFILE).seconds(users, 1, 256)
    prompts_of_others = 0.01 if users == 1 else 0.25
    assert float(token_ms) == pytest.approx(1e3 * expected, rel=prompts_of_others)
    assert (tokens, nodes, calls) == ("1.00", "1.0", "0.00")
    assert float(rate) < users / expected  # the prompts take their time, too


@pytest.mark.parametrize("users", [1, 4])
def test_drafts_make_recorded_texts_faster_for_every_user(
    recorded: dict[tuple[int, str], list[str]], users: int
) -> None:
    _, speed, least, *_ = recorded[users, "hybrid"]
    assert float(speed.removesuffix("x")) > 1.5
    assert float(least.removesuffix("x")) >= 0.98
