"""The trade-off curve is measured, says what it does not know, and its files agree with each
other.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.cost.accounting import Rates
from inference.cost.objective import Effort
from inference.cost.quantity import Figure, Quality
from inference.errors import InvalidRequest
from outrider.completion import Completion
from outrider.options import Options
from outrider.tradeoff.measure import aims_of, measure_tradeoff
from outrider.tradeoff.options import TradeoffOptions, parse
from outrider.tradeoff.points import Ledger, Point, Sample, marked, pareto, spread, summarise
from outrider.tradeoff.results import columns, print_tradeoff, write_tradeoff

UNREAD = Figure.unavailable("no counter here")
RATES = Rates(3.6, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0)
LEDGER = Ledger(RATES, 1.0, 10.0, 100.0, whole=True)


def text(seconds: float, drafting: float, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> Completion:
    """A text whose first half comes after half of the time."""
    done = Completion(
        0, "p", 0, 3, token_ids=list(tokens), forwards=2, seconds=seconds, draft_seconds=drafting
    )
    done.draft_calls, done.bytes_up = 6, 80
    done.tokens_per_second = len(tokens) / seconds
    done.arrivals, done.chunk_tokens = [seconds / 2, seconds], [len(tokens) // 2] * 2
    return done


def samples(*seconds: float, joules: Figure = UNREAD) -> list[Sample]:
    return [Sample(text(each, each / 10), joules) for each in seconds]


def point(speed: float, usd: float | None = None, joules: float | None = None) -> Point:
    """Of one text that is as fast and costs as much."""
    made = summarise(0.0, samples(4 / speed), samples(4 / speed), LEDGER)
    figures = [
        UNREAD if value is None else Figure.measured(value, "by hand") for value in (usd, joules)
    ]
    return replace(
        made, usd_per_million=spread(figures[:1]), joules_per_million=spread(figures[1:])
    )


def test_the_pareto_set_is_what_nothing_dominates() -> None:
    assert pareto([(1, 5), (2, 4), (3, 3), (3, 4), (1, 6)]) == [True, True, True, False, False]
    assert pareto([(1, 1), (1, 1)]) == [True, True]
    assert pareto([(2.0,), (1.0,), (1.0,)]) == [False, True, True]


def test_points_are_marked_by_speed_and_by_what_is_known_of_all() -> None:
    def efficient(*points: Point) -> list[bool]:
        return [one.efficient for one in marked(points)]

    assert efficient(point(10, 2.0), point(20, 3.0), point(15, 3.5)) == [True, True, False]
    assert efficient(point(10, 2.0, 9.0), point(20, 3.0, 8.0), point(15, 3.5, 1.0)) == [
        True,
        True,
        True,
    ]
    assert efficient(point(10, 2.0, 1.0), point(20, 1.0)) == [
        False,
        True,
    ]  # joules are known of one alone
    assert efficient(point(10), point(20)) == [False, True]


def test_a_spread_is_the_median_with_its_interval_and_is_as_good_as_its_worst_part() -> None:
    found = spread(
        [
            Figure.measured(3.0, "clock"),
            Figure.estimated(1.0, "watts"),
            Figure.measured(2.0, "clock"),
        ]
    )
    assert (found.median.value, found.median.quality) == (2.0, Quality.ESTIMATED)
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low <= 2.0 <= found.high <= 3.0
    unknown = spread([Figure.measured(3.0, "clock"), UNREAD])
    assert unknown == (UNREAD, None, None)


def test_a_point_by_hand() -> None:
    made = summarise(50.0, samples(1.0, 2.0, 4.0), samples(1.0, 2.0, 4.0), LEDGER)
    assert (made.texts, made.tokens, made.identical_texts) == (3, 12, 3)
    assert made.tokens_per_second.median == 2.0
    assert made.after_first_chunk == pytest.approx(6 / 3.5)
    seconds, joules = (
        2.0,
        0.2 * 10.0,
    )  # of the median text: the target is held for 2 s, the draft's machine draws 10 W for 0.2 s
    assert made.usd_per_million.median.value == pytest.approx(
        (seconds * 3.6 / 3600 + joules * 0.36 / 3.6e6) / 4 * 1e6
    )
    assert made.joules_per_million.median.value == pytest.approx((joules + 2.0 * 100) / 4 * 1e6)
    assert (made.draft_calls, made.forwards, made.bytes_up) == (1.5, 0.5, 20.0)


def test_texts_that_differ_from_the_first_points_are_counted() -> None:
    other = [Sample(text(1.0, 0.1, (1, 2, 3, 5)), UNREAD), *samples(2.0)]
    assert summarise(100.0, other, samples(1.0, 2.0), LEDGER).identical_texts == 1


READ = Figure.measured(8.0, "counter")
EFFORT = Effort(2.0, 0.2)


@pytest.mark.parametrize(
    ("ledger", "read", "joules"),
    [
        (LEDGER, READ, 8.0),  # this machine as a whole is draft and target
        (LEDGER, UNREAD, 202.0),
        (replace(LEDGER, whole=False), READ, 208.0),  # the target is elsewhere
        (replace(LEDGER, untold="emulated"), READ, 202.0),
        (replace(LEDGER, target_watts=None), READ, 8.0),
        (replace(LEDGER, whole=False, draft_watts=None), READ, 208.0),
    ],
)
def test_joules_are_read_where_they_can_be_and_else_counted_from_stated_watts(
    ledger: Ledger, read: Figure, joules: float
) -> None:
    found = ledger.joules_per_million(4, EFFORT, read)
    assert found.value == pytest.approx(joules / 4 * 1e6)


@pytest.mark.parametrize(
    ("ledger", "read", "reason"),
    [
        (
            replace(LEDGER, target_watts=None),
            UNREAD,
            "no counter here; nobody has stated the watts of the target",
        ),
        (
            replace(LEDGER, draft_watts=None),
            UNREAD,
            "no counter here; nobody has stated the watts of the draft",
        ),
        (
            replace(LEDGER, whole=False, target_watts=None),
            READ,
            "nobody has stated the watts of the target",
        ),
        (
            replace(LEDGER, untold="the target is emulated", draft_watts=None),
            READ,
            "the target is emulated; nobody has stated the watts of the draft",
        ),
    ],
)
def test_joules_of_one_side_alone_are_not_the_joules_of_a_token(
    ledger: Ledger, read: Figure, reason: str
) -> None:
    assert ledger.joules_per_million(4, EFFORT, read) == Figure.unavailable(reason)


def test_dollars_need_a_price_and_say_what_they_leave_out() -> None:
    assert (
        replace(LEDGER, rates=None).usd_per_million(4, EFFORT).source
        == "no price was given (--usd_per_hour or --instance)"
    )
    bound = replace(LEDGER, rates=replace(RATES, usd_per_kwh=None)).usd_per_million(4, EFFORT)
    assert bound.value == pytest.approx(500.0)
    assert bound.source.startswith("at least")


def test_what_is_not_known_stands_in_the_csv_as_such() -> None:
    line = columns(marked([point(10, 2.0)])[0])
    assert (
        line["usd_per_million"],
        line["joules_per_million"],
        line["joules_per_million_source"],
    ) == (2.0, "unavailable", "no counter here")
    assert line["joules_per_million_low"] is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"cs": ("50",)}, "two or more different positions"),
        ({"cs": ("cost", "100")}, "two or more different positions"),
        ({"cs": ("0", "130")}, "--cs 0,130"),
        ({"cs": ("0", "fast")}, "'fast'"),
        ({"num_runs": 0}, "--num_runs 0"),
        ({"rtt": -1.0}, "--rtt -1"),
        ({"target_host": "a:1", "emulate": "some"}, "--target_host"),
        ({"draft": Options(gamma=3)}, "--gamma"),
        ({"draft": Options(pace="wait")}, "--pace"),
        ({"draft": Options(explain=True)}, "--explain does not go"),
        ({"draft": Options(min_tps=3.0)}, "--min_tps does not go"),
        ({"draft": Options(baseline=True)}, "--baseline does not go"),
    ],
)
def test_a_curve_that_cannot_be_measured_is_refused_by_its_flag(
    wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        TradeoffOptions(**wrong)


def test_its_flags_stand_beside_those_of_a_draft() -> None:
    options = parse(
        [
            "--cs",
            "tps,balanced,80",
            "--num-runs",
            "2",
            "--usd_per_hour",
            "1.5",
            "--max_new_tokens",
            "9",
            "--out",
            "there",
        ]
    )
    assert options == TradeoffOptions(
        Options(usd_per_hour=1.5, max_new_tokens=9), ("tps", "balanced", "80"), 2, out="there"
    )
    assert parse([]).cs == ("0", "25", "50", "75", "100")


def test_a_knob_that_weighs_what_nobody_has_stated_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidRequest, match="--usd_per_hour or --instance"):
        measure_tradeoff(TradeoffOptions(cs=("0", "100")))
    with pytest.raises(InvalidRequest, match="watts of the draft"):
        aims_of(TradeoffOptions(Options(objective="draft_energy")), None)


def test_the_embedded_pair_is_measured_and_its_files_agree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    draft = Options(
        prompt="def f(",
        max_new_tokens=5,
        max_tree_nodes=16,
        sequence_length=64,
        usd_per_hour=1.0,
        usd_per_kwh=0.3,
        draft_watts=30.0,
        target_watts=50.0,
    )
    options = TradeoffOptions(draft, ("0", "100"), 2)
    curve = measure_tradeoff(options)
    print_tradeoff(curve)
    assert "speed against" in capsys.readouterr().out
    paths = write_tradeoff(tmp_path, options, curve)
    assert [path.name for path in paths] == ["tradeoff.json", "tradeoff.csv", "tradeoff.png"]
    kept = json.loads(paths[0].read_text())
    lines = list(csv.DictReader(paths[1].open()))
    assert (
        [one["cs"] for one in kept["points"]]
        == [float(line["cs"]) for line in lines]
        == [0.0, 100.0]
    )
    assert [one["efficient"] for one in kept["points"]] == [
        line["pareto"] == "True" for line in lines
    ]
    assert any(one["efficient"] for one in kept["points"])
    assert len(kept["texts"]) == 4
    assert all(done["token_ids"] == kept["texts"][0]["token_ids"] for done in kept["texts"])
    for one, line in zip(kept["points"], lines, strict=True):
        speeds = [done["tokens_per_second"] for done in kept["texts"] if done["cs"] == one["cs"]]
        assert (
            one["tokens_per_second"]["median"]
            == pytest.approx(sum(speeds) / 2)
            == pytest.approx(float(line["tokens_per_second"]))
        )
        assert one["usd_per_million"]["value"] == pytest.approx(float(line["usd_per_million"]))
        assert one["joules_per_million"]["value"] == pytest.approx(
            float(line["joules_per_million"])
        )
        assert 0 < one["forwards"] <= 1
        assert (one["texts"], one["tokens"], one["identical_texts"]) == (2, 10, 2)
    assert kept["options"]["draft"]["usd_per_hour"] == 1.0
    assert paths[2].read_bytes().startswith(b"\x89PNG")
