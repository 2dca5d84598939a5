"""The comparison measures its own baseline, interleaves, says what it does not know, and writes
what it measured.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.cost.accounting import Rates
from inference.cost.quantity import Figure
from inference.drafters.tree_policies import BestFirst, Chain
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.compare import main
from outrider.comparison.accounting import Account
from outrider.comparison.arms import (
    ARCHITECTURES,
    BASELINE,
    CHAIN,
    FUSED,
    GROWING,
    Arm,
    label,
    read_setting,
)
from outrider.comparison.closed_forms import Round
from outrider.comparison.gauges import Gauges, Reading
from outrider.comparison.landscape import ROUNDS, landscape
from outrider.comparison.margins import Margins, first_difference
from outrider.comparison.options import parse
from outrider.comparison.prediction import (
    Costs,
    Network,
    acceptance,
    costs_of,
    host_of,
    made_across,
    made_at_the_target,
)
from outrider.comparison.rows import Row, summarise
from outrider.comparison.spread import bootstrap_median, percentiles
from outrider.comparison.sweep import sweep
from outrider.comparison.tables import differences, figure
from outrider.comparison.verdict import _at
from outrider.completion import Completion, Request
from outrider.models import EMBEDDED, find_checkpoint
from outrider.options import Options
from outrider.spawn import started

FREE = Account(None, "no price was given", own_machine=True)
SHORT = [
    "--num-runs",
    "1",
    "--max_new_tokens",
    "12",
    "--chains",
    "4",
    "--trees",
    "8x3",
    "--rtt",
    "0",
]


def architecture(name: str) -> Any:
    return next(one for one in ARCHITECTURES if one.name == name)


def text(
    rounds: int, per_round: int, round_seconds: float, index: int = 0, **fields: Any
) -> Completion:
    """A text whose rounds all bring the same, the first one after one second."""
    count = rounds * per_round
    made = Completion(
        index,
        "p",
        0,
        3,
        token_ids=list(range(count)),
        forwards=rounds,
        nodes=count,
        seconds=1 + (rounds - 1) * round_seconds,
    )
    made.arrivals, made.chunk_tokens = (
        [1 + index * round_seconds for index in range(rounds)],
        [per_round] * rounds,
    )
    made.tokens_per_second, made.time_to_first_token = count / made.seconds, 1.0
    made.num_accepted_tokens, made.accepted_at_depth = (
        rounds * (per_round - 1),
        [rounds] * (per_round - 1),
    )
    return replace(made, **fields)


def reading(done: Completion) -> Reading:
    return Reading(done, Figure.unavailable("no counter here"), None, None)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with started("fused_target", ["--batch", "1"]) as process:
        yield process.address


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole comparison, of a target that it starts and stops itself."""
    directory = tmp_path_factory.mktemp("comparison")
    (directory / "prompts.txt").write_text("def f(x):\nimport os\n")
    flags = [
        "--prompt-file",
        str(directory / "prompts.txt"),
        "--num-runs",
        "1",
        "--max_new_tokens",
        "16",
        "--temperature",
        "0.8",
        "--seed",
        "5",
    ]
    flags += [
        "--chains",
        "2,4",
        "--trees",
        "8x4",
        "--rtt",
        "0,6",
        "--local",
        "--usd-per-hour",
        "1.2",
    ]
    assert main([*flags, "--out", str(directory)]) == 0
    return directory


def test_every_architecture_makes_the_targets_own_text_on_the_embedded_pair(results: Path) -> None:
    found = json.loads((results / "results.json").read_text())
    rows = found["architectures"]
    assert [(row["rtt_ms"], row["architecture"]) for row in rows] == [
        (trip, one.name) for trip in (0, 6) for one in ARCHITECTURES
    ]
    for row in rows:
        assert row["identical_texts"] == row["texts"] == 2
        assert row["tokens"] == 32
        assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        assert row["usd_per_million"]["value"] != 0
        assert row["joules_per_token"]["value"] != 0
        assert row["usd_per_million_by_forwards"]["value"] != 0
        if row["architecture"].startswith(BASELINE):
            assert row["forwards"] == row["lone_forwards"] == 32
        else:
            assert row["lone_forwards"] <= row["forwards"] <= 32
    assert all(row["ratio"]["median"] == 1 for row in rows if row["architecture"] == BASELINE)
    assert len(found["texts"]) == 4 * len(ARCHITECTURES)


@pytest.mark.parametrize(("name", "settings"), [(CHAIN, {"2", "4"}), (GROWING, {""})])
@pytest.mark.parametrize("trip", [0, 6])
def test_the_settings_are_those_that_a_reported_sweep_found(
    results: Path, name: str, settings: set[str], trip: float
) -> None:
    found = json.loads((results / "results.json").read_text())
    trials = [
        trial
        for trial in found["sweep"]
        if trial["architecture"] == name and trial["rtt_ms"] == trip
    ]
    assert {trial["setting"] for trial in trials} == settings
    (chosen,) = (trial["setting"] for trial in trials if trial["chosen"])
    assert {
        row["setting"]
        for row in found["architectures"]
        if row["architecture"] == name and row["rtt_ms"] == trip
    } == {chosen}


def test_the_draft_beside_a_target_that_runs_makes_its_text(target: str, tmp_path: Path) -> None:
    flags = ["--architectures", f"{BASELINE},{FUSED}", "--out", str(tmp_path)]
    assert main([*SHORT, "--target_host", target, *flags]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["architectures"]
    assert [row["architecture"] for row in rows] == [BASELINE, FUSED]
    assert all(row["identical_texts"] == row["texts"] for row in rows)


def test_the_setting_of_a_draft_beside_the_target_is_gone_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--fused", "4"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_each_cell_has_its_prediction_and_environment_and_options_are_kept(results: Path) -> None:
    found = json.loads((results / "results.json").read_text())
    for row in found["architectures"]:
        has_form = architecture(row["architecture"]).time is not None
        assert (row["predicted"] is not None) == has_form
        assert (row["prediction_error"] is not None) == has_form
    assert found["environment"]["python"]
    assert found["options"]["chains"] == ["2", "4"]
    assert found["options"]["max_new_tokens"] == 16
    with (results / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * len(ARCHITECTURES)
    assert {"ratio.median", "inter_chunk.p99", "usd_per_million.quality", "predicted"} <= set(
        lines[0]
    )
    report = (results / "report.md").read_text()
    assert all(
        words in report
        for words in (
            "## What it says",
            "## Sweep",
            "Predictions of the time per token",
            "max_new_tokens",
        )
    )


def test_plots_are_made_where_matplotlib_is(results: Path) -> None:
    pytest.importorskip("matplotlib")
    assert {path.name for path in results.glob("*.png")} == {
        "speeds.png",
        "round_trip.png",
        "winners.png",
    }


def test_without_matplotlib_there_are_no_plots_and_one_line_says_how_to_get_them(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert (
        main(
            [
                *SHORT,
                "--target_host",
                target,
                "--architectures",
                f"{BASELINE},{FUSED}",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert capsys.readouterr().err.count("outrider[plots]") == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json",
        "results.csv",
        "report.md",
    }


def test_no_speed_up_is_given_without_a_target_only_run(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                *SHORT,
                "--target_host",
                target,
                "--architectures",
                CHAIN,
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    (row,) = json.loads((tmp_path / "results.json").read_text())["architectures"]
    assert row["ratio"] is None
    assert row["identical_texts"] is None
    shown = capsys.readouterr().out
    assert "No speed-up is given" in shown
    assert "times target-only" not in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt-file", "/nowhere"], "/nowhere"),
        (["--target_host", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--target_model", "/nowhere/model"], "/nowhere/model"),
        (["--emulate", "nothing-known"], "nothing-known"),
        (["--instance", "nothing.large", "--no_live"], "nothing.large"),
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--num-runs", "1"]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--rtt", "-1"],
        ["--rtt", "5,5"],
        ["--chains", "8x4"],
        ["--trees", "four"],
        ["--architectures", "magic"],
        ["--num_runs", "0"],
    ],
)
def test_flags_that_mean_nothing_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert ended.value.code == 2


def test_settings_are_read_as_they_are_written() -> None:
    for policy in (Chain(4), BestFirst(16, 6)):
        assert read_setting(label(policy)) == policy


def test_a_median_lies_in_its_interval_and_one_value_has_no_width() -> None:
    assert bootstrap_median([3.0]) == (3, 3, 3)
    found = bootstrap_median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3
    assert 1 <= found.low < 3 < found.high <= 100
    assert found == bootstrap_median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert percentiles(list(range(101))) == (50, 90, 99)
    assert percentiles([]) is None


def test_a_sweep_keeps_the_faster_half_and_chooses_one_of_each_group() -> None:
    seconds = {2: 0.3, 4: 0.1, 8: 0.2}

    def arm(length: int) -> Arm:
        return Arm(
            architecture(CHAIN),
            Chain(length),
            lambda request: text(4, 2, seconds[length]),
        )

    request = Request(0, "p", [1], SamplingParams(), 8, frozenset())
    alone = Arm(architecture(BASELINE), None, lambda request: text(8, 1, 0.1))
    trials = sweep([[arm(2), arm(4), arm(8)], [alone]], [request], 0.0)
    found = [(trial.arm.setting, len(trial.texts), trial.chosen) for trial in trials]
    assert found == [("2", 1, False), ("4", 3, True), ("8", 3, False), ("", 3, True)]


def test_costs_of_a_round_come_from_texts_and_predict_another_round_trip() -> None:
    """Rounds of 50 ms at 20 ms of round trip, of which 10 are drafted and 12 are the target's: 8
    are the programs'.
    """
    done = [
        text(5, 4, 0.05, draft_seconds=0.05, target_seconds=0.06, num_draft_tokens=20)
        for _ in range(3)
    ]
    host = host_of(done, 0.02)
    costs = costs_of(done, host)
    assert host == pytest.approx(0.008)
    assert costs is not None
    assert (costs.made.drafting, costs.made.verify, costs.made.tokens) == pytest.approx(
        (0.01, 0.012, 4)
    )
    assert costs.nodes == 5
    assert made_across(costs, Network(0.02)) == pytest.approx(0.05 / 4)
    assert made_across(costs, Network(0.1)) == pytest.approx(0.13 / 4)
    assert made_at_the_target(costs, Network(0.1)) == pytest.approx(0.03 / 4)
    assert costs_of([text(1, 4, 0.05)], 0.0) is None


def test_acceptance_counts_a_round_that_went_to_the_end_as_no_miss() -> None:
    done = text(10, 1, 0.1, num_accepted_tokens=18, accepted_at_depth=[8, 6, 4])
    assert acceptance([done]) == pytest.approx(18 / (18 + 6))


def test_the_map_gives_a_fast_network_to_the_draft_and_a_slow_one_to_the_target() -> None:
    chain = Costs(Round(0.04, 0.1, 3), 5, 20, 10, 0, 0.002)
    known = {
        (BASELINE, ""): Costs(Round(0, 0.09, 1), 1, 0, 0, 0, 0.001),
        (CHAIN, "4"): chain,
    }
    found = landscape(known)
    assert found is not None
    assert found.fastest([0.9], [0.0, 5.0], [BASELINE, ROUNDS]).tolist() == [[1, 0]]
    assert found.fastest([0.9, 0.05], [0.0], [BASELINE, ROUNDS]).tolist() == [[1], [0]]
    assert landscape({(BASELINE, ""): known[BASELINE, ""]}) is None


def row(ours: list[Completion], alone: list[Completion] | None, account: Account = FREE) -> Row:
    arm = Arm(architecture(CHAIN), Chain(2), lambda request: ours[0])
    before = None if alone is None else [reading(done) for done in alone]
    return summarise(arm, 0.0, [reading(done) for done in ours], before, account, [], 0.02)


def test_a_ratio_is_taken_text_by_text_and_a_difference_is_only_claimed_beyond_its_interval() -> (
    None
):
    alone = [text(8, 1, 0.5, index) for index in range(6)]
    faster = row([text(4, 2, 0.5, index) for index in range(6)], alone)
    assert faster.ratio is not None
    assert faster.ratio.median == pytest.approx(4.5 / 2.5)
    assert faster.seconds_per_token == pytest.approx(0.25)
    assert faster.error == pytest.approx(0.02 / 0.25 - 1)
    assert "was faster, 1.80 times" in _at(0, [faster])
    mixed = row([text(4, 2, 0.5 if index % 2 else 2.0, index) for index in range(6)], alone)
    assert "could not be told apart" in _at(0, [mixed])
    few = row([text(4, 2, 0.5, index) for index in range(5)], alone[:5])
    assert "too few to tell" in _at(0, [few])


def test_what_is_not_known_is_unavailable_and_never_zero() -> None:
    found = row([text(4, 2, 0.5)], None)
    for known in (found.usd_per_million, found.joules_per_token):
        assert known.value is None
        assert figure(known, 2) == "unavailable"
    priced = row([text(4, 2, 0.5)], None, Account(Rates(3.6), "given", own_machine=True))
    assert priced.usd_per_million.value == pytest.approx(0.001 * 2.5 / 8 * 1e6)
    assert figure(priced.usd_per_million, 2) == "at least 312.50"


def test_a_text_has_a_second_price_where_the_forwards_alone_are_paid() -> None:
    paying = Account(Rates(3.6), "given", own_machine=True)
    found = row([text(4, 2, 0.5, share_seconds=0.6, prefill_seconds=0.2)], None, paying)
    assert found.usd_per_million_by_forwards.value == pytest.approx(0.001 * 0.8 / 8 * 1e6)
    assert found.usd_per_million_by_forwards.value < (found.usd_per_million.value or 0.0)


def test_forwards_without_candidates_are_told_apart() -> None:
    found = row([text(4, 2, 0.5, lone_forwards=1, num_accepted_tokens=4)], None)
    assert (found.acceptance_length, found.acceptance_length_drafted) == (2.0, 1 + 4 / 3)


def test_the_first_difference_of_two_texts_is_found_with_the_margin_of_the_choices() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    tokenizer = Tokenizer(EMBEDDED / "target")
    margins = Margins(find_checkpoint(Options(), "target"))
    prompt = tokenizer.encode("import os\nimport s", chat=False)
    greedy = SamplingParams()
    likely, unlikely = tokenizer.encode("ys", chat=False)[-1], tokenizer.encode("?", chat=False)[-1]
    there, back = (
        margins.margin(prompt, greedy, unlikely, likely),
        margins.margin(prompt, greedy, likely, unlikely),
    )
    assert there.value is not None
    assert back.value == pytest.approx(-there.value)
    assert margins.margin(prompt, greedy, likely, likely).value == pytest.approx(0, abs=1e-4)
    sampled = margins.margin(prompt, SamplingParams(0.5, seed=3), unlikely, likely)
    assert sampled.value not in (None, there.value)
    assert Margins(None).margin(prompt, greedy, 1, 2).value is None
    assert differences([]) == []


def test_memory_is_read_for_each_text_and_energy_is_unavailable_without_a_counter() -> None:
    found = Gauges([], None).read(
        lambda request: text(2, 1, 0.1), Request(0, "p", [1], SamplingParams(), 8, frozenset())
    )
    assert found.joules.value is None
    assert found.memory_target is None
    if sys.platform == "linux":
        assert found.memory_here
