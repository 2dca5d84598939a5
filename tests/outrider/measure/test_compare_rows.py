"""Rows, statistics, charges and the verdict of a comparison, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inference.cost.billing import Billing
from inference.cost.quantity import Figure, Quality
from inference.drafters.round_proposer import BestFirst, Chain
from inference.planner.prices import Usage
from outrider.measure.arms import (
    ARCHITECTURES,
    BASELINE,
    CHAIN,
    FUSED,
    GROWING,
    HYBRID,
    LOCAL,
    TREE,
    Arm,
    Setting,
    read_setting,
)
from outrider.measure.compare_options import CompareOptions
from outrider.measure.comparison import Comparison
from outrider.measure.plots import draw
from outrider.measure.report import WIDTH, columns, leader, told, verdict
from outrider.measure.rows import Account, Reading, ResultRow, acceptance, marked, summarise
from outrider.measure.statistics import bootstrap_median, median_figure, pareto, percentiles
from outrider.money.goal import Goal
from outrider.text.completion import Completion
from tests.support.completions import changed, completion

UNREAD = Figure.unavailable("no counter here")
READ = Figure.measured(8.0, "counter")
USAGE = Usage(2.0, 0.2)
PRICED = Billing(3.6, 0.36, 0.0, 0.0, draft_watts=10.0, target_watts=100.0, source="given")
PAYING = Account(PRICED, whole=True)
FREE = Account(Billing(), whole=True)
HALF, OTHER = replace(PRICED, target_watts=None), replace(PRICED, draft_watts=None)


def arm(name: str, setting: Setting = Setting(), seconds: float = 0.5) -> Arm:  # noqa: B008
    architecture = next(one for one in ARCHITECTURES if one.name == name)
    return Arm(architecture, setting, lambda request: text(4, 2, seconds))


def text(
    rounds: int, per_round: int, round_seconds: float, index: int = 0, **fields: Any
) -> Completion:
    """A text whose rounds all bring the same, the first one after one second."""
    count, seconds = rounds * per_round, 1 + (rounds - 1) * round_seconds
    accepted = rounds * (per_round - 1)
    made = completion(
        count,
        index=index,
        forwards=rounds,
        candidates=count - rounds,
        seconds=seconds,
        time_to_first_token=1.0,
        arrivals=[1 + number * round_seconds for number in range(rounds)],
        chunk_tokens=[per_round] * rounds,
        num_accepted_tokens=accepted,
        accepted_at_depth=[rounds] * (per_round - 1),
    )
    return changed(made, **fields)


def several(rounds: int, per_round: int, round_seconds: float, count: int = 6) -> list[Completion]:
    return [text(rounds, per_round, round_seconds, index) for index in range(count)]


def row(
    ours: list[Completion],
    alone: list[Completion] | None = None,
    account: Account = FREE,
    made_by: Arm | None = None,
    rtt_ms: float = 0.0,
) -> ResultRow:
    before = None if alone is None else [Reading(done, UNREAD) for done in alone]
    mine = [Reading(done, UNREAD) for done in ours]
    by = made_by or arm(CHAIN, Setting(Chain(2)))
    return summarise(by, rtt_ms, mine, before, account)


def rows_at(rtt_ms: float, seconds: dict[str, float], texts: int = 6) -> list[ResultRow]:
    """Target-only at half a second a token, and chains and trees whose rounds take so long."""
    alone = several(8, 1, 0.5, texts)
    found = [row(alone, alone, FREE, arm(BASELINE), rtt_ms)]
    policies = {CHAIN: Chain(2), TREE: BestFirst(8, 4)}
    for name, each in seconds.items():
        ours = several(4, 2, each, texts)
        found.append(row(ours, alone, FREE, arm(name, Setting(policies.get(name))), rtt_ms))
    return found


def comparison(rows: list[ResultRow], **options: Any) -> Comparison:
    trips = tuple(dict.fromkeys(one.rtt_ms for one in rows))
    return Comparison("", CompareOptions(rtt=trips, **options), rows, [], "", [])


def test_settings_are_written_as_they_are_read() -> None:
    for policy in (Chain(4), BestFirst(16, 6)):
        assert read_setting(Setting(policy).label) == policy
    assert Setting(goal=Goal(weight=0.5)).knob == 50
    assert Setting().label == ""


def test_a_median_lies_in_its_interval_and_one_value_has_no_width() -> None:
    assert bootstrap_median([3.0]) == (3, 3, 3)
    found = bootstrap_median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3
    assert 1 <= found.low < 3 < found.high <= 100
    assert found == bootstrap_median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert percentiles(list(range(101))) == (50, 90, 99, 100)
    assert percentiles([]) is None


def test_a_median_of_figures_is_as_good_as_the_worst_of_them() -> None:
    clock = [Figure.measured(3.0, "clock"), Figure.measured(2.0, "clock")]
    found = median_figure([*clock, Figure.estimated(1.0, "watts")])
    assert (found.median.value, found.median.quality) == (2.0, Quality.ESTIMATED)
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low <= 2.0 <= found.high <= 3.0
    assert median_figure([*clock, UNREAD]) == (UNREAD, None, None)


def test_the_pareto_set_is_what_nothing_dominates() -> None:
    assert pareto([(1, 5), (2, 4), (3, 3), (3, 4), (1, 6)]) == [True, True, True, False, False]
    assert pareto([(1, 1), (1, 1)]) == [True, True]
    assert pareto([(2.0,), (1.0,), (1.0,)]) == [False, True, True]


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ([(10, 2.0, None), (20, 3.0, None), (15, 3.5, None)], [True, True, False]),
        ([(10, 2.0, 9.0), (20, 3.0, 8.0), (15, 3.5, 1.0)], [True, True, True]),
        ([(10, 2.0, 1.0), (20, 1.0, None)], [False, True]),  # joules are known of one alone
        ([(10, None, None), (20, None, None)], [False, True]),
    ],
)
def test_rows_are_marked_by_speed_and_by_what_is_known_of_all(
    costs: list[tuple[float, float | None, float | None]], best: list[bool]
) -> None:
    def one(speed: float, *known: float | None) -> ResultRow:
        figures = (UNREAD if value is None else Figure.measured(value, "hand") for value in known)
        usd, joules = (median_figure([figure]) for figure in figures)
        made = row(several(4, 2, 0.5))
        speeds = bootstrap_median([speed])
        return replace(
            made, tokens_per_second=speeds, usd_per_million=usd, joules_per_million=joules
        )

    assert [found.pareto for found in marked([one(*cost) for cost in costs])] == best
    few = [replace(one(*cost), texts=5) for cost in costs]
    assert not any(found.pareto for found in marked(few))


def test_a_round_that_went_to_the_end_and_a_forward_without_candidates_are_no_misses() -> None:
    done = text(10, 1, 0.1, num_accepted_tokens=18, accepted_at_depth=[8, 6, 4])
    assert acceptance([done]) == pytest.approx(18 / (18 + 6))
    assert acceptance([changed(done, lone=2)]) == pytest.approx(18 / (18 + 4))
    assert row([done]).acceptance == acceptance([done])


def test_a_ratio_is_taken_text_by_text_and_claimed_only_beyond_its_interval() -> None:
    alone = several(8, 1, 0.5)
    faster = row(several(4, 2, 0.5), alone)
    assert faster.ratio is not None
    assert faster.ratio.median == pytest.approx(4.5 / 2.5)
    assert faster.seconds_per_token == pytest.approx(0.25)
    mixed = row([text(4, 2, 0.5 if index % 2 else 2.0, index) for index in range(6)], alone)
    few = row(several(4, 2, 0.5, 5), alone[:5])
    assert [one.faster for one in (faster, mixed, few)] == [True, False, False]
    assert not any(one.slower for one in (faster, mixed, few))


def test_the_leader_is_faster_than_target_only_or_target_only_itself_or_nobody() -> None:
    def name(seconds: dict[str, float], texts: int = 6) -> str | None:
        found = leader(rows_at(0, seconds, texts))
        return None if found is None else found.arm.architecture.name

    assert name({CHAIN: 0.5, TREE: 0.4}) == TREE
    assert name({CHAIN: 3.0, TREE: 2.0}) == BASELINE
    assert name({CHAIN: 0.5, TREE: 0.4}, texts=5) is None


def test_the_verdict_is_two_lines_that_agree() -> None:
    rows = [*rows_at(0, {CHAIN: 0.5, GROWING: 0.6}), *rows_at(40, {CHAIN: 3.0, GROWING: 3.0})]
    lines = verdict(comparison(rows))
    assert len(lines) == 2
    assert f"0 ms: {CHAIN} 2 is fastest, 1.80x" in lines[0]
    assert "40 ms: target-only is fastest" in lines[0]
    assert "pays at 0 ms" in lines[1]
    assert "slower than target-only at 40 ms" in lines[1]
    assert len(verdict(comparison(rows_at(0, {CHAIN: 0.5})[1:]))) == 1, "there is no baseline"


def test_where_the_default_is_not_faster_the_verdict_says_what_to_do_instead() -> None:
    rows = [
        *rows_at(0, {HYBRID: 0.5, FUSED: 0.9}),
        *rows_at(20, {HYBRID: 3.0, FUSED: 0.5}),
        *rows_at(40, {HYBRID: 3.0, CHAIN: 0.5}),
        *rows_at(80, {HYBRID: 3.0}),
    ]
    assert (
        "hybrid is what `outrider run` does; faster here: `outrider run --target_only, with "
        "outrider fused_target` at 20 ms; `outrider run --preset classic_sd --gamma 2` at 40 ms; "
        "`outrider run --preset vanilla` at 80 ms. For a target elsewhere give --emulate PROFILE"
    ) in verdict(comparison(rows))[1]
    assert "--emulate" not in verdict(comparison(rows, target_host="a:1"))[1]
    assert "outrider run" not in verdict(comparison(rows_at(0, {HYBRID: 0.5})))[1]


def test_each_row_has_its_command_and_the_default_is_marked() -> None:
    tree = arm(TREE, Setting(BestFirst(16, 12)))
    lines = told(comparison([*rows_at(0, {CHAIN: 0.5, HYBRID: 0.5}), priced(16)])).splitlines()
    assert lines[0].startswith("1. 0 ms:")
    assert [line for line in lines if "(default)" in line] == [
        line for line in lines if line.split()[:2] == ["0", HYBRID]
    ]
    shown = {" ".join(line.split()) for line in lines}
    assert {
        "hybrid outrider run",
        "target-only outrider run --preset vanilla",
        "synchronous chain 2 outrider run --preset classic_sd --gamma 2",
        f"{tree.name} outrider run --preset tree_sd --tree_nodes 16 --tree_depth 12",
    } <= shown


def test_titles_of_plots_are_whole_and_bars_stand_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    agg, drawn = pytest.importorskip("matplotlib.backends.backend_agg"), list[Any]()
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    alone = several(8, 1, 0.5)
    knobs = [arm(GROWING, Setting(goal=Goal(weight=at))) for at in (0, 0.5, 1)]
    rows = [row(alone, alone, PAYING, one) for one in (arm(BASELINE), *knobs)]
    draw(tmp_path, replace(comparison(rows), title="a draft for a target on a device; " * 8))
    assert len(drawn) == 2
    for picture in drawn:
        canvas = agg.FigureCanvasAgg(picture)
        title = picture.texts[0].get_window_extent(canvas.get_renderer())
        assert 0 <= title.x0 < title.x1 <= picture.bbox.width
    bars = drawn[0].axes[0].patches
    assert all(left.get_x() + left.get_width() < right.get_x() for left, right in pairwise(bars))
    assert len({bar.get_facecolor() for bar in bars}) == 4


def test_the_cheapest_position_is_named_only_where_it_can_be_told() -> None:
    def line(*seconds: float) -> str:
        alone = several(8, 1, 0.5)
        rows = [row(alone, alone, PAYING, arm(BASELINE))]
        for number, each in enumerate(seconds):
            by = arm(GROWING, Setting(goal=Goal(weight=number / 2)))
            rows.append(row(several(4, 2, each), alone, PAYING, by))
        return verdict(comparison(rows, cs=("0", "50")))[2]

    assert "--cs 50" in line(0.6, 0.3)
    assert "cannot be told" not in line(0.6, 0.3)
    assert "cannot be told" in line(0.5, 0.5)


def test_what_is_not_known_is_unavailable_and_never_zero() -> None:
    found = row([text(4, 2, 0.5)])
    for known in (found.usd_per_million, found.joules_per_million, found.joules_here_per_million):
        assert known.median.value is None
    bare = Account(Billing(3.6), whole=True)
    priced = row([text(4, 2, 0.5)], None, bare)
    assert priced.usd_per_million.median.value == pytest.approx(0.001 * 2.5 / 8 * 1e6)
    assert priced.usd_per_million.median.lower_bound
    assert columns(comparison([priced]))[1][0][-1] == ">=312.50"


def test_a_row_by_hand_is_charged_with_the_target_held_and_by_its_forwards() -> None:
    done = text(4, 2, 0.5, draft_seconds=0.2, share_seconds=0.6, prefill_seconds=0.2)
    found = row([done], None, PAYING)
    draft = 0.2 * 10.0  # joules
    electricity = draft * 0.36 / 3.6e6
    assert found.usd_per_million.median.value == pytest.approx(
        (2.5 * 0.001 + electricity) / 8 * 1e6
    )
    assert found.usd_per_million_by_forwards.median.value == pytest.approx(
        (0.8 * 0.001 + electricity) / 8 * 1e6
    )
    assert found.joules_per_million.median.value == pytest.approx((draft + 2.5 * 100) / 8 * 1e6)


def test_a_target_on_the_users_own_machine_is_not_rented() -> None:
    own = PAYING.of(arm(LOCAL).architecture)
    assert own.usd_per_million(4, USAGE, READ).value is None
    assert own.joules_per_million(4, USAGE, READ).value == pytest.approx(2e6)


@pytest.mark.parametrize(
    ("account", "read", "told"),
    [
        (PAYING, READ, 8.0),  # this machine as a whole is draft and target
        (PAYING, UNREAD, 202.0),
        (replace(PAYING, whole=False), READ, 208.0),  # the target is elsewhere
        (replace(PAYING, emulated=True), READ, 202.0),
        (Account(HALF, whole=True), READ, 8.0),
        (Account(OTHER, whole=False), READ, 208.0),
        (Account(HALF, whole=True), UNREAD, ("counter", "watts of the target")),
        (Account(OTHER, whole=True), UNREAD, ("counter", "watts of the draft")),
        (Account(HALF, whole=False), READ, ("watts of the target",)),
        (Account(OTHER, whole=True, emulated=True), READ, ("emulated", "watts of the draft")),
    ],
)
def test_joules_are_read_or_counted_from_stated_watts_and_of_one_side_alone_they_are_none(
    account: Account, read: Figure, told: float | tuple[str, ...]
) -> None:
    found = account.joules_per_million(4, USAGE, read)
    if isinstance(told, float):
        assert found.value == pytest.approx(told / 4 * 1e6)
    else:
        assert found.value is None
        assert all(reason in found.source for reason in told)


def priced(texts: int) -> ResultRow:
    """With the longest name of a default arm."""
    done = several(4, 2, 0.5, texts)
    made = row(done, done, PAYING, arm(TREE, Setting(BestFirst(16, 12))), 1000.0)
    return replace(made, pareto=True, device="")


def test_costs_that_are_nowhere_known_are_hidden() -> None:
    assert "$/1M" not in columns(comparison(rows_at(0, {CHAIN: 0.5})))[0]
    assert {"$/1M", "J/token"} <= set(columns(comparison([priced(1)]))[0])


def test_the_widest_table_of_the_terminal_loses_nothing_at_a_hundred_columns() -> None:
    found = comparison([priced(16)])
    lines = told(found).splitlines()
    assert max(map(len, lines)) <= WIDTH
    (line,) = (line for line in lines if line.lstrip().startswith("1000"))
    assert line.split() == " ".join(columns(found)[1][0]).split()
