"""Figures of a run, its verdict, and its report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.cost.billing import Billing, Figure, Quality
from outrider.measure.figures import (
    Row,
    geometric_interval,
    median_figure,
    median_interval,
    percentiles,
    speed_up,
    summarise,
)
from outrider.measure.journal import Journal, plan_of
from outrider.measure.report import SPEEDS, WIDTH, Report, leader, table, verdict
from outrider.measure.run import (
    AGAIN,
    BASELINE,
    CHAIN,
    FUSED,
    HYBRID,
    TREE,
    Arm,
)
from tests.outrider.measure.texts import PRICED, UNREAD, arm, key, record, rows
from tests.support.commands import changed, completion

READ = Figure.measured(8.0, "counter")
HALF, OTHER = replace(PRICED, target_watts=None), replace(PRICED, draft_watts=None)
DRAFTED = "hybrid"


def test_a_median_lies_in_its_interval_and_one_value_has_no_width() -> None:
    assert median_interval([3.0]) == (3, 3, 3)
    found = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.value == 3
    assert 1 <= found.low < 3 < found.high <= 100
    assert found == median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert geometric_interval([[2.0]]) == pytest.approx((2, 2, 2))
    assert geometric_interval([[1.0, 4.0]]) == pytest.approx((2, 1, 4))  # of one prompt
    assert percentiles(list(range(101))) == (50, 90, 99, 100)
    assert percentiles([]) is None


def test_a_median_of_figures_is_as_good_as_the_worst_of_them() -> None:
    clock = [Figure.measured(3.0, "clock"), Figure.measured(2.0, "clock")]
    found = median_figure([*clock, Figure.estimated(1.0, "watts")])
    assert (found.value, found.quality) == (2.0, Quality.ESTIMATED)
    assert median_figure([*clock, UNREAD]) == UNREAD


def test_a_speed_up_is_the_ratio_of_seconds_of_the_same_text() -> None:
    alone, drafted = rows({DRAFTED: 0.5})
    assert alone.speed_up is None
    assert drafted.speed_up == pytest.approx((4.5 / 2.5,) * 3)
    assert drafted.time_per_output_token is not None
    assert drafted.time_per_output_token.p50 == pytest.approx(0.25)
    assert (drafted.compared, drafted.equal) == (6, 6)
    assert drafted.acceptance_by_depth == [1.0]


def test_turns_and_repetitions_of_a_prompt_count_as_one_text_in_a_mean() -> None:
    def pair(ratio: float, name: str, turn: int = 0):  # type: ignore[no-untyped-def]
        ours, theirs = record(1, 1, 0), record(1, 1, 0)
        return key(DRAFTED, name, turn=turn), ours | {"seconds": 1 / ratio}, theirs

    found = speed_up([pair(8.0, "a"), pair(2.0, "a", 1), pair(1.0, "b")])
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(1.0)
    assert 2.0 < found.high <= 8.0 + 1e-9
    assert speed_up([]) is None


def test_a_difference_is_claimed_beyond_its_interval_and_beyond_target_only_over_itself() -> None:
    quick, slow = rows({DRAFTED: 0.5})[1], rows({DRAFTED: 2.0})[1]
    assert (quick.faster, quick.slower) == (True, False)
    assert (slow.faster, slow.slower) == (False, True)
    assert not rows({DRAFTED: 0.5}, texts=5)[1].faster
    # an A/A pair that is as far apart as 1.8 makes 1.8 no news, and no slower than 0.6 either
    noisy = rows({AGAIN: 0.5, DRAFTED: 0.5})
    assert [row.arm for row in noisy] == [BASELINE, AGAIN, DRAFTED]
    assert noisy[2].noise == noisy[1].speed_up
    assert not noisy[2].faster
    assert not rows({AGAIN: 3.0, DRAFTED: 2.9})[2].faster
    assert not rows({AGAIN: 2.0, DRAFTED: 2.0})[2].slower


def test_a_text_that_differs_is_named_with_its_first_difference() -> None:
    ours = record(4, 2, 0.5)
    ours["token_ids"] = [0, 1, 9, 3]
    (_, row) = summarise({key(BASELINE): record(8, 1, 0.5), key(DRAFTED): ours})
    assert row.equal == 0
    assert row.differences == [("own/text/0, turn 1", 2, 9, 2)]
    shorter = ours | {"token_ids": [0, 1]}
    (_, row) = summarise({key(BASELINE): record(8, 1, 0.5), key(DRAFTED): shorter})
    assert row.differences == [("own/text/0, turn 1", 2, None, 2)]


def test_a_text_is_charged_for_its_time_on_the_target_and_what_is_unknown_is_never_0() -> None:
    counts = {"draft_seconds": 0.2, "share_seconds": 0.6, "prefill_seconds": 0.2}
    (row,) = summarise({key(DRAFTED): record(4, 2, 0.5, PRICED, **counts)})
    draft = 0.2 * 10.0  # joules
    expected = {
        "usd_per_million": 2.5 * 0.001 + draft * 0.36 / 3.6e6,
        "joules_per_million": draft + 2.5 * 100,
    }
    for name, value in expected.items():
        assert row.costs[name].value == pytest.approx(value / 8 * 1e6)
    (row,) = summarise({key(DRAFTED): record(4, 2, 0.5)})
    assert all(cost.value is None for cost in row.costs.values())
    (row,) = summarise({key(DRAFTED): record(4, 2, 0.5, Billing(3.6))})
    assert row.costs["usd_per_million"].value == pytest.approx(0.001 * 2.5 / 8 * 1e6)
    assert row.costs["usd_per_million"].lower_bound


@pytest.mark.parametrize(
    ("paid", "read", "told"),
    [
        (arm(), READ, 8.0),  # this machine as a whole is draft and target
        (arm(), UNREAD, 202.0),
        (arm(joint=False), READ, 208.0),  # the target is elsewhere
        (arm(emulated=True), READ, 202.0),
        (arm(HALF), READ, 8.0),
        (arm(OTHER, joint=False), READ, 208.0),
        (arm(HALF), UNREAD, ("counter", "watts of the target")),
        (arm(OTHER), UNREAD, ("counter", "watts of the draft")),
        (arm(HALF, joint=False), READ, ("watts of the target",)),
        (arm(OTHER, emulated=True), READ, ("emulated", "watts of the draft")),
    ],
)
def test_joules_are_read_or_counted_from_stated_watts_and_never_of_one_side_alone(
    paid: Arm, read: Figure, told: float | tuple[str, ...]
) -> None:
    made = changed(completion(4, seconds=2.0), draft_seconds=0.2)
    found = paid.costs(made, read)["joules_per_million"]
    if isinstance(told, float):
        assert found.value == pytest.approx(told / 4 * 1e6)
    else:
        assert found.value is None
        assert all(reason in found.source for reason in told)


MACHINE = {"processor": "a CPU", "cpus": 2, "load": None, "commit": "abc", "versions": {}}
START = {
    "draft": "a draft", "target": "a target", "models": {"device": "cpu"}, "left_out": {},
    "round_trip": 0.001, "shared": False, "environment": MACHINE, "times": [[1, 1, 0.1]],
}  # fmt: skip
RUN = Journal(plan_of({}, []))
RUN.write("start", START)


def report(found: list[Row]) -> Report:
    return Report([], found, RUN)


def test_the_leader_is_faster_than_target_only_or_target_only_itself_or_nobody() -> None:
    def name(seconds: dict[str, float], texts: int = 6) -> str | None:
        found = leader(rows(seconds, texts))
        return None if found is None else found.arm

    assert name({CHAIN: 0.5, TREE: 0.4}) == TREE
    assert name({CHAIN: 3.0, TREE: 2.0}) == BASELINE
    assert name({CHAIN: 0.5, TREE: 0.4}, texts=5) is None
    assert name({AGAIN: 0.4, CHAIN: 0.5}) is None, "the A/A pair is further apart"


def test_the_verdict_names_the_fastest_over_each_link_and_ends_with_its_command() -> None:
    found = [
        *rows({HYBRID: 0.5, FUSED: 0.9}),
        *rows({HYBRID: 3.0, FUSED: 0.5}, rtt_ms=20),
        *rows({HYBRID: 3.0}, rtt_ms=80),
        *rows({"with a draft": 0.5}, rtt_ms=90),
    ]
    links = verdict(found).split("; ")
    assert f"0 ms: {HYBRID} is fastest, 1.80 [" in links[0]
    assert links[0].endswith(": `outrider run`")
    assert links[1].endswith(": `outrider run --preset eagle_sd`, with outrider fused_target")
    assert links[2].startswith("80 ms: target-only is fastest")
    assert links[2].endswith(": `outrider run --preset vanilla`")
    assert links[3].endswith("tokens/s).")


def test_the_default_is_the_first_row_over_each_link_and_doubts_are_marked() -> None:
    found = rows({AGAIN: 0.5, CHAIN: 0.5, HYBRID: 0.2}) + rows({HYBRID: 0.4}, rtt_ms=9)
    lines = table(found, SPEEDS)
    assert [line.split()[:2] for line in lines if "(default)" in line] == [
        ["0", HYBRID],
        ["9", HYBRID],
    ]
    assert "(default)" in lines[1]
    assert [line.split()[1] for line in lines if " ? " in line] == ["target-only", "synchronous"]
    assert any(one.startswith("Noise") for one in report(found).notes)
    assert not any(one.startswith("Noise") for one in report(rows({CHAIN: 0.5})).notes)


def test_columns_that_say_nothing_are_hidden_and_the_widest_table_fits_a_terminal() -> None:
    heads = table(rows({CHAIN: 0.5}), SPEEDS)[0]
    assert not {"$/1M", "RTT", "kind"} & set(heads.split())
    tree = f"{TREE} 16x12"
    found = rows({tree: 0.5}, billing=PRICED) + rows({tree: 0.5}, rtt_ms=1000, billing=PRICED)
    assert "$/1M" in table(found, SPEEDS)[0]
    assert max(map(len, report(found).text().splitlines())) <= WIDTH
