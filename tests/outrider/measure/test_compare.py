"""The comparison measures its own baseline, interleaves, says what it does not know, and writes
what it measured; with --cs it is the curve of speed against cost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.measure.arms import (
    AGAIN,
    ARCHITECTURES,
    BASELINE,
    CHAIN,
    FUSED,
    GROWING,
    TREE,
    choices,
)
from outrider.measure.commands import compare as main
from outrider.measure.commands import parse
from outrider.measure.compare import compare, read_positions
from outrider.measure.journal import NAME
from outrider.measure.options import CompareOptions
from outrider.measure.report import WIDTH
from outrider.models.directories import EMBEDDED
from outrider.target.spawn import started
from tests.support.commands import Run
from tests.support.refusals import assert_refused

SHORT = ["--num-runs", "2", "--max_new_tokens", "8", "--rtt", "0"]
ONE_SETTING = ["--settings", "4,8x3"]
FILES = {"report.json", "report.md", "run.jsonl"}


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with started("fused_target", ["--batch", "1"]) as process:
        yield process.address


def read(directory: Path) -> Any:
    return json.loads((directory / "report.json").read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole comparison, of a target that it starts and stops itself."""
    directory = tmp_path_factory.mktemp("comparison")
    (directory / "prompts.txt").write_text("def f(x):\nimport os\nclass A:\n")
    prompts = ["--prompt-text", str(directory / "prompts.txt"), "--seed", "5"]
    texts = ["--num-runs", "2", "--max_new_tokens", "8", "--temperature", "0.8"]
    arms = ["--settings", "2,4,8x4", "--rtt", "0,6"]
    arms += ["--architectures", ",".join(ARCHITECTURES)]
    out = ["--usd-per-hour", "1.2", "--out", str(directory)]
    assert main([*prompts, *texts, *arms, *out]) == 0
    return directory


def test_every_architecture_makes_the_targets_own_text_on_the_embedded_pair(results: Path) -> None:
    found = read(results)
    rows = found["rows"]
    settings = {CHAIN: [" 2", " 4"], TREE: [" 8x4"]}
    arms = [f"{name}{setting}" for name in ARCHITECTURES for setting in settings.get(name, [""])]
    arms.insert(1, AGAIN)
    assert [(row["rtt_ms"], row["arm"]) for row in rows] == [
        (trip, arm) for trip in (0, 6) for arm in arms
    ]
    for row in rows:
        assert row["equal"] == row["compared"] == row["texts"] == 6
        assert row["tokens"] == 48
        for name in ("usd_per_million", "joules_per_million"):
            assert row[name]["value"] != 0
        if row["arm"].startswith(BASELINE):
            assert row["forwards"] == row["lone_forwards"] == 48
        else:
            assert row["lone_forwards"] <= row["forwards"] <= 48
        if row["arm"] != BASELINE:
            assert row["speed_up"]["low"] <= row["speed_up"]["mean"] <= row["speed_up"]["high"]
    assert (results / NAME).read_bytes().count(b'{"text"') == 6 * len(rows)


def test_a_draft_that_is_named_goes_to_no_target_without_one_beside_it() -> None:
    named = ["--draft_model", str(EMBEDDED / "draft"), "--architectures", GROWING]
    assert main([*SHORT, *named]) == 0


def test_environment_and_options_are_kept(results: Path) -> None:
    found = read(results)
    assert found["starts"][0]["environment"]["python"]
    assert found["settings"]["settings"] == ["2", "4", "8x4"]
    assert found["settings"]["max_new_tokens"] == 8


def test_plots_are_made_where_matplotlib_is(results: Path) -> None:
    pytest.importorskip("matplotlib")
    assert {path.stem for path in results.glob("*.png")} == {"speeds", "tradeoff"}


def test_a_draft_beside_a_target_that_runs_is_compared_in_three_lines_and_a_narrow_table(
    target: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an extra that is not installed
    arms = ["--architectures", f"{BASELINE},{FUSED}", "--out", str(tmp_path)]
    runs = ["--num_runs", "3", "--prompt_text", str(tmp_path / "prompts")]
    (tmp_path / "prompts").write_text("def f(x):\nimport os\n")
    shown = run("compare", *SHORT, *runs, "--target_host", target, *arms)
    rows, verdict = read(tmp_path)["rows"], read(tmp_path)["verdict"]
    assert [row["arm"] for row in rows] == [BASELINE, AGAIN, FUSED]
    assert all(row["equal"] == row["texts"] == 6 for row in rows)
    assert shown.err.count(".[plots]") == 1
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == FILES | {"prompts"}
    assert 1 <= len(verdict) <= 3
    assert max(map(len, shown.out.splitlines())) <= WIDTH
    words = " ".join(shown.out.split())
    assert words.index("1. ") < words.index("tokens/s")
    assert all(" ".join(line.split()) in words for line in verdict)


def test_no_speed_up_is_given_without_a_target_only_run(target: str, tmp_path: Path) -> None:
    flags = ["--target_host", target, "--architectures", CHAIN, "--out", str(tmp_path)]
    assert main([*SHORT, *ONE_SETTING, *flags]) == 0
    (row,) = read(tmp_path)["rows"]
    assert row["speed_up"] is None
    assert row["compared"] == 0
    assert len(read(tmp_path)["verdict"]) == 1


def test_the_curve_is_a_comparison_of_positions_of_the_knob(target: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "prompt").write_text("def f(")
    prices = ["--usd_per_hour", "1", "--usd_per_kwh", "0.3", "--usd_per_gb_up", "0"]
    watts = ["--usd_per_gb_down", "0", "--draft_watts", "30", "--target_watts", "50"]
    texts = ["--prompt_text", str(tmp_path / "prompt"), "--max_new_tokens", "5", "--num_runs", "6"]
    flags = ["--target_host", target, "--cs", "tps,100", "--out", str(tmp_path)]
    assert main([*prices, *watts, *texts, *flags]) == 0
    found = read(tmp_path)
    rows = found["rows"]
    positions = [f"{GROWING} --cs tps", f"{GROWING} --cs 100"]
    assert [row["arm"] for row in rows] == [BASELINE, AGAIN, *positions]
    assert [found["arms"][name]["flags"]["cs"] for name in positions] == ["tps", "100"]
    for row in rows:
        assert row["equal"] == row["texts"] == 6
        for name in ("usd_per_million", "joules_per_million"):
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]
    assert (tmp_path / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_known_to_be_missing_or_too_few_is_refused_before_anything_is_looked_for(
    tmp_path: Path,
) -> None:
    """The draft that these name is not there."""
    (tmp_path / "prompts").write_text("one\ntwo\n")
    pair = {"draft_model": "/nowhere", "prompt_text": str(tmp_path / "prompts")}
    few, priceless = CompareOptions(**pair), CompareOptions(**pair, num_runs=3, cs=("0", "100"))
    unmeasured = CompareOptions(objective="draft_energy", cs=("50",))
    assert_refused(lambda: compare(few), ["4 texts", "6", "--num_runs 3"])
    assert_refused(lambda: compare(priceless), ["--usd_per_hour", "--instance"])
    assert_refused(lambda: read_positions(unmeasured), ["watts of the draft"])
    for alone in ((BASELINE,), (CHAIN,)):  # nothing is told from anything
        assert len(CompareOptions(**pair, architectures=alone).items()) == 2


MISSING = (
    "--prompt-text /nowhere",
    "--target_host 127.0.0.1:1",
    "--target_model /nowhere/model",
    "--emulate nothing-known",
    "--instance nothing.large --no_live",
)


@pytest.mark.parametrize("flags", MISSING)
def test_a_comparison_that_cannot_be_made_says_why(flags: str, run: Run) -> None:
    run("compare", *flags.split()).assert_failed(flags.split()[1])


MEANINGLESS = (
    "--rtt -1",
    "--rtt 5,5",
    "--settings four",
    "--architectures magic",
    "--num_runs 0",
    "--fused 4",
    "--cs 50,balanced",
    "--cs 0,fast",
    "--cs 0,50 --architectures target-only",
    "--objective latency",
    "--target_host a:1 --emulate some",
    "--gamma 3",
    "--tree_nodes 4",
    "--min_tps 3",
    "--preset hybrid",
    "--draft none",
)


@pytest.mark.parametrize("flags", MEANINGLESS)
def test_flags_that_mean_nothing_are_refused_by_name(flags: str, run: Run) -> None:
    run("compare", *flags.split()).assert_usage_error(flags.split()[0])


def test_its_flags_stand_beside_those_of_a_draft() -> None:
    options = parse("compare", ["--cs", "tps,80", "--usd_per_hour", "1.5", "--max_new_tokens", "9"])
    given = (options.prices.usd_per_hour, options.text.max_new_tokens)
    assert (*given, options.text.seed) == (1.5, 9, 0)
    assert options.chosen == (BASELINE, GROWING)
    assert options.rtt == (0.0,)
    assert parse("compare", []) == CompareOptions()
    assert_refused(lambda: CompareOptions(settings="four"), ["four", "16x6"])


def test_each_size_and_position_is_an_arm_and_a_kind_of_draft_model_is_that_of_the_flags() -> None:
    options = CompareOptions(settings="5,16x6", draft="substitute,copy")
    arms = {one.name: dict(one.flags) for one in choices(options)}
    assert arms[f"{CHAIN} 5"] == {"draft": "substitute", "gamma": 5}
    assert arms[f"{TREE} 16x6"] == {"draft": "substitute", "tree_nodes": 16, "tree_depth": 6}
    assert arms["hybrid"]["draft"] == "substitute,copy"
