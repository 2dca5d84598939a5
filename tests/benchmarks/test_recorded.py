"""The study on recorded texts: several users of one target on a virtual clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inference.backends.timed import find_profile
from tests.support.repository import ROOT

PROFILE = "llama-3.1-8b-trn2.3xlarge-published"
PAIR = [str(ROOT / "inference/data" / name) for name in ("target", "draft")]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[str]]:
    """By users and arm: the cells of their line."""
    texts = tmp_path_factory.mktemp("recorded") / "texts.json"
    flags = ["--texts", str(texts), "--each", "4", "--tokens", "32", "--profiles", PROFILE]
    command = [sys.executable, "-m", "benchmarks.regret.recorded", *PAIR, *flags]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    lines = [line.strip("| ").split(" | ") for line in made.stdout.splitlines() if PROFILE in line]
    return {(int(cells[1]), cells[2]): cells[3:] for cells in lines if len(cells) > 3}


@pytest.mark.parametrize("users", [1, 4])
def test_the_target_alone_makes_a_token_of_every_user_in_a_pass(
    table: dict[tuple[int, str], list[str]], users: int
) -> None:
    rate, _, _, token_ms, tokens, nodes, calls = table[users, "target-only"]
    expected = find_profile(PROFILE).seconds(users, 1, 256)
    prompts_of_others = 0.01 if users == 1 else 0.25
    assert float(token_ms) == pytest.approx(1e3 * expected, rel=prompts_of_others)
    assert (tokens, nodes, calls) == ("1.00", "1.0", "0.00")
    assert float(rate) < users / expected  # the prompts take their time, too


@pytest.mark.parametrize("users", [1, 4])
def test_drafts_make_recorded_texts_faster_for_every_user(
    table: dict[tuple[int, str], list[str]], users: int
) -> None:
    _, speed, least, *_ = table[users, "hybrid"]
    assert float(speed.removesuffix("x")) > 1.5
    assert float(least.removesuffix("x")) >= 0.98
