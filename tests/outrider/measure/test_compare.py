"""The comparison measures its own baseline, interleaves, says what it does not know, and writes
what it measured.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.measure import testbed
from outrider.measure.commands import parse
from outrider.measure.journal import NAME
from outrider.measure.report import WIDTH
from outrider.measure.run import AGAIN, ARCHITECTURES, BASELINE, CHAIN, FUSED, GROWING
from outrider.measure.verbs.options import CompareOptions
from outrider.options.roles import FusedTargetRole
from outrider.target.spawn import Started
from tests.support.commands import Run

SERVED = FusedTargetRole(port=0, batch=1)


def read(directory: Path) -> Any:
    return json.loads((directory / "report.json").read_text())


def test_every_architecture_makes_the_targets_own_text_on_the_embedded_pair(
    port: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\nimport os\nclass A:\n")
    prompts = ["--prompt-text", tmp_path / "prompts.txt", "--seed", "5"]
    texts = ["--num-runs", "1", "--max_new_tokens", "8", "--temperature", "0.8"]
    flags = ["--rtt", "0,6", "--architectures", ",".join(ARCHITECTURES), "--usd-per-hour", "1.2"]
    ended = run("compare", *prompts, *texts, *flags, "--port", port, "--out", tmp_path)
    assert ended.code == 0, ended.err
    found = read(tmp_path)
    rows = found["rows"]
    arms = {*ARCHITECTURES, AGAIN}
    assert [row["arm"] for row in rows[:2]] == [BASELINE, AGAIN]
    assert {(row["rtt_ms"], row["arm"]) for row in rows} == {*product((0, 6), arms)}
    assert len(rows) == 2 * len(arms)
    for row in rows:
        assert row["equal"] == row["compared"] == row["texts"] == 3
        assert row["tokens"] == 24
        for name in ("usd_per_million", "joules_per_million"):
            assert row[name]["value"] != 0
        if row["arm"].startswith(BASELINE):
            assert row["forwards"] == row["lone_forwards"] == 24
        else:
            assert row["lone_forwards"] <= row["forwards"] <= 24
        if row["arm"] != BASELINE:
            assert row["speed_up"]["low"] <= row["speed_up"]["value"] <= row["speed_up"]["high"]
    assert (tmp_path / NAME).read_bytes().count(b'{"text"') == 3 * len(rows)
    assert found["starts"][0]["environment"]["python"]
    assert (found["settings"]["rtt"], found["settings"]["max_new_tokens"]) == ([0, 6], 8)
    plots = {"speeds"} if find_spec("matplotlib") else set[str]()
    assert {path.stem for path in tmp_path.glob("*.png")} == plots


def test_a_draft_that_is_named_goes_to_a_target_with_one_beside_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = list[tuple[str, bool]]()

    def note(role: str, words: list[str]) -> AbstractContextManager[Started]:
        commands.append((role, "--draft_model" in words))
        return nullcontext(Started("127.0.0.1:1", 0, deque()))

    monkeypatch.setattr(testbed, "started", note)
    for arm in (GROWING, FUSED):
        options = parse("compare", ["--draft_model", "there", "--architectures", arm])
        with testbed.target_of(options, options.arms):
            pass
    assert commands == [("target", False), ("fused_target", True)]


SHORT = ["compare", "--num-runs", "2", "--max_new_tokens", "8", "--rtt", "0"]


def test_a_draft_beside_a_target_that_runs_is_compared_in_three_lines_and_a_narrow_table(
    port: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an extra that is not installed
    arms = ["--architectures", f"{BASELINE},{FUSED}", "--out", str(tmp_path)]
    runs = ["--num_runs", "3", "--prompt_text", str(tmp_path / "prompts")]
    (tmp_path / "prompts").write_text("def f(x):\nimport os\n")
    shown = run(*SHORT, *runs, "--port", port, *arms)
    rows, verdict = read(tmp_path)["rows"], read(tmp_path)["verdict"]
    assert [row["arm"] for row in rows] == [BASELINE, AGAIN, FUSED]
    assert all(row["equal"] == row["texts"] == 6 for row in rows)
    assert shown.err.count(".[plots]") == 1
    files = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert files == {"report.json", "report.md", NAME, "prompts"}
    assert 1 <= len(verdict) <= 3
    assert max(map(len, shown.out.splitlines())) <= WIDTH
    words = " ".join(shown.out.split())
    assert words.index("1. ") < words.index("tokens/s")
    assert all(" ".join(line.split()) in words for line in verdict)


def test_a_draft_beside_the_target_is_left_out_where_the_target_has_none(
    tmp_path: Path, run: Run
) -> None:
    arms = ["--architectures", f"{FUSED},{GROWING}", "--out", str(tmp_path)]
    with outrider.serve(port=0, batch=1) as plain:
        shown = run(*SHORT, "--target_host", plain.address, *arms)
    assert [row["arm"] for row in read(tmp_path)["rows"]] == [BASELINE, AGAIN, GROWING]
    assert "Left out: fused: --draft beside: " in shown.out


@pytest.mark.parametrize(
    "flags",
    [
        "--prompt-text /nowhere",
        "--target_host 127.0.0.1:1",
        "--target_model /nowhere/model",
        "--instance nothing.large --port PORT",
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(flags: str, port: str, run: Run) -> None:
    run("compare", *flags.replace("PORT", port).split()).assert_failed(flags.split()[1])


@pytest.mark.parametrize(
    "flags",
    [
        "--rtt -1",
        "--rtt 5,5",
        "--architectures magic",
        "--num_runs 0",
        "--fused 4",
        "--cs 50",
        "--objective latency",
        "--target_host a:1 --emulate some",
        "--gamma 3",
        "--tree_nodes 4",
        "--min_tps 3",
        "--preset hybrid",
        "--draft none",
    ],
)
def test_flags_that_mean_nothing_are_refused_by_name(flags: str, run: Run) -> None:
    run("compare", *flags.split()).assert_usage_error(flags.split()[0])


def test_a_kind_of_draft_model_drafts_in_every_architecture() -> None:
    options = CompareOptions(draft="substitute,copy", architectures=(CHAIN, "hybrid"))
    assert options.arms == {
        BASELINE: {"draft": "none"},
        CHAIN: {"draft": "substitute", "gamma": 4},
        "hybrid": {"draft": "substitute,copy"},
    }
