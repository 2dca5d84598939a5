"""What the user asks of drafting is read from the flags, and refused where it
contradicts itself.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from inference.cost.accounting import Rates
from inference.cost.effort import Effort
from inference.cost.objective import Terms, Wish
from inference.errors import InvalidRequest, OutriderError
from inference.planner.prices import Prices
from outrider.money.goals import fallback_note, read_aims, read_prices, read_terms, read_wish
from outrider.money.steering import SteeredPrices
from outrider.options import parse
from outrider.options.groups import GoalOptions

PRICED = Rates(1.34375, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.09)

AT_ONCE = {
    "knob and chain": (["--cs", "50", "--gamma", "3"], ["--cs", "--gamma"]),
    "limit and tree": (["--min_tps", "10", "--tree_nodes", "8"], ["--min_tps", "--tree_nodes"]),
    "explain and tree": (["--explain", "--tree_depth", "5"], ["--explain", "--tree_depth"]),
    "limit and waiting": (["--min_tps", "10", "--pace", "wait"], ["--min_tps", "--pace wait"]),
    "chain and going on": (["--gamma", "3", "--pace", "go_on"], ["--gamma", "--pace go_on"]),
    "two prices": (
        ["--instance", "trn1.2xlarge", "--usd_per_hour", "2"],
        ["--instance", "--usd_per_hour"],
    ),
    "share over all": (["--target_share", "1.5"], ["--target_share"]),
    "share of nothing": (["--target_share", "0"], ["--target_share"]),
    "negative watts": (["--draft_watts", "-5"], ["--draft_watts"]),
    "negative price": (["--usd_per_kwh", "-1"], ["--usd_per_kwh"]),
    "price without end": (["--usd_per_gb_up", "inf"], ["--usd_per_gb_up"]),
    "price that is no number": (["--target_watts", "nan"], ["--target_watts"]),
}


@pytest.mark.parametrize(("flags", "named"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_flags_that_contradict_each_other_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], flags: list[str], named: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--role", "draft", "--prompt", "x", *flags])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert all(flag in said for flag in named)


@pytest.mark.parametrize(
    "flags",
    [
        ["--cs", "cost"],
        ["--min_tps", "9"],
        ["--pace", "wait"],
        ["--gamma", "3"],
        ["--max_usd", "1"],
    ],
    ids=lambda flags: flags[0],
)
def test_wishes_are_of_the_draft(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--role", "verify_target", *flags])
    said = capsys.readouterr().err.splitlines()[-1]
    assert flags[0] in said
    assert "--role draft" in said


CONTRADICTIONS = {
    "two limits": ({"min_tps": 9.0, "max_usd_per_1m": 5.0}, ["--min_tps", "--max_usd_per_1m"]),
    "three limits": (
        {"min_tps": 9.0, "max_usd_per_1m": 5.0, "max_joules_per_token": 1.0},
        ["--max_joules_per_token"],
    ),
    "knob and limit": ({"cs": "balanced", "min_tps": 9.0}, ["--cs", "--min_tps"]),
    "joules of dollars": (
        {"max_joules_per_token": 1.0, "objective": "total_cost"},
        ["--max_joules_per_token", "--objective"],
    ),
    "dollars of joules": (
        {"max_usd_per_1m": 5.0, "objective": "energy_total"},
        ["--max_usd_per_1m", "--objective"],
    ),
    "knob beyond": ({"cs": "101"}, ["--cs"]),
    "knob in words": ({"cs": "cheap"}, ["--cs", "cheap"]),
}


@pytest.mark.parametrize(("values", "named"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_goals_that_contradict_each_other_are_refused_by_name(
    values: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        GoalOptions(**values)
    assert all(flag in str(refused.value) for flag in named)


def test_wishes_are_read_from_the_flags() -> None:
    assert read_wish(GoalOptions(), None) == Wish("api_cost")
    assert read_wish(GoalOptions(cs="balanced", draft_watts=20.0), PRICED) == Wish(
        "total_cost", 0.5
    )
    assert read_wish(GoalOptions(cs="30"), PRICED) == Wish(
        "api_cost", 0.3
    )  # the draft's electricity is not known
    assert read_wish(GoalOptions(cs="30", objective="draft_energy"), PRICED) == Wish(
        "draft_energy", 0.3
    )
    assert read_wish(GoalOptions(max_usd_per_1m=5.0), PRICED) == Wish(
        "api_cost", max_per_token=5e-6
    )
    assert read_wish(GoalOptions(max_joules_per_token=2.0), None) == Wish(
        "energy_total", max_per_token=2.0
    )
    assert read_wish(GoalOptions(min_tps=9.0), PRICED) == Wish("api_cost", min_tps=9.0)


@pytest.mark.parametrize(
    "options",
    [
        GoalOptions(cs="1"),
        GoalOptions(min_tps=9.0),
        GoalOptions(max_usd_per_1m=5.0),
        GoalOptions(cs="cost", objective="total_cost"),
    ],
)
def test_a_cost_without_a_price_says_how_to_give_one(options: GoalOptions) -> None:
    with pytest.raises(InvalidRequest, match=r"--usd_per_hour or --instance"):
        read_terms(options, None, read_wish(options, None))


HOURS = Rates(1.34)
ALL = replace(PRICED, usd_per_gb_from_target=0.0)


@pytest.mark.parametrize(
    ("options", "rates", "said"),
    [
        (GoalOptions(), None, "without a price"),
        (GoalOptions(), HOURS, "api_cost is proportional to time"),
        (GoalOptions(objective="latency"), HOURS, "latency is proportional to time"),
        (GoalOptions(draft_watts=0.0), ALL, "total_cost is proportional to time"),
        (GoalOptions(objective="draft_energy"), HOURS, "watts of the draft"),
        (GoalOptions(draft_watts=9.0), ALL, ""),
        (GoalOptions(draft_watts=0.0), replace(ALL, usd_per_gb_to_target=0.1), ""),
        (GoalOptions(draft_watts=9.0, objective="draft_energy"), HOURS, ""),
    ],
)
def test_where_every_position_of_the_knob_asks_for_the_same_none_is_offered(
    options: GoalOptions, rates: Rates | None, said: str
) -> None:
    unsteered = read_aims(options, rates).unsteered
    assert said in unsteered
    assert bool(said) == bool(unsteered)
    half = options.but(cs="50")
    if said:
        with pytest.raises(InvalidRequest):
            read_aims(half, rates)
    else:
        assert read_aims(half, rates).wish.weight == 0.5


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_where_cost_is_time_every_weight_decides_as_speed_alone(weight: float) -> None:
    random, cost = Random(7), Terms(HOURS).tariff("api_cost")
    fast = Prices(battery=True)
    steered = SteeredPrices(battery=True, wish=Wish("api_cost", weight), cost=cost)
    for _ in range(500):
        tokens = random.randint(1, 6)
        effort = Effort(*(random.expovariate(1 / unit) for unit in (0.02, 0.03, 300.0, 50.0)))
        offers = [(random.uniform(0, 2), random.expovariate(1 / 0.3)) for _ in range(6)]
        for prices in (fast, steered):
            prices.committed(tokens, effort)
        assert steered.best(offers) == fast.best(offers)
        assert steered.least_value() == fast.least_value()


def test_speed_alone_needs_no_price_and_energy_needs_watts_instead() -> None:
    assert read_terms(GoalOptions(), None, Wish()) is None
    options = GoalOptions(max_joules_per_token=2.0, draft_watts=20.0)
    terms = read_terms(options, None, read_wish(options, None))
    assert terms is not None
    with pytest.raises(InvalidRequest, match="watts of the target"):
        terms.tariff("energy_total")
    assert replace(terms, target_watts=400.0).tariff("energy_total") == pytest.approx(
        (400.0, 20.0, 0.0, 0.0)
    )


@pytest.mark.parametrize(
    ("options", "rates", "named"),
    [
        (
            GoalOptions(cs="cost", usd_per_kwh=0.3, draft_watts=20.0),
            Rates(1.0, usd_per_kwh=0.3),
            "needs --usd_per_gb_up and --usd_per_gb_down (0",
        ),
        (GoalOptions(cs="cost", usd_per_kwh=0.3), PRICED, "needs --draft_watts (0"),
        (
            GoalOptions(min_tps=9.0, draft_watts=20.0),
            replace(PRICED, usd_per_kwh=None),
            "needs --usd_per_kwh (0",
        ),
    ],
)
def test_prices_that_are_stated_and_not_weighed_are_said_with_the_flags_that_are_missing(
    options: GoalOptions, rates: Rates, named: str
) -> None:
    note = fallback_note(options, rates, read_wish(options, rates))
    assert note is not None
    assert "api_cost" in note
    assert named in note


@pytest.mark.parametrize(
    "options",
    [
        GoalOptions(cs="cost"),  # the hours alone are priced
        GoalOptions(usd_per_kwh=0.3),  # nothing is weighed
        GoalOptions(cs="cost", usd_per_kwh=0.3, draft_watts=20.0),  # all is priced
        GoalOptions(cs="cost", usd_per_kwh=0.3, objective="api_cost"),  # as the user says
    ],
)
def test_where_cost_is_what_the_user_expects_nothing_is_said(options: GoalOptions) -> None:
    assert fallback_note(options, PRICED, read_wish(options, PRICED)) is None


def test_the_price_of_the_target_is_the_users_the_instances_or_its_own_word() -> None:
    assert read_prices(GoalOptions(), 0.0) is None
    assert read_prices(GoalOptions(), 2.5) == (Rates(2.5), "$2.5 an hour, as the target says")
    given = read_prices(GoalOptions(usd_per_hour=1.0, usd_per_kwh=0.3, usd_per_gb_up=0.0), 2.5)
    assert given == (Rates(1.0, usd_per_kwh=0.3, usd_per_gb_to_target=0.0), "$1 an hour, as given")


def test_a_listed_price_is_said_with_its_source_and_day() -> None:
    listed = read_prices(
        GoalOptions(instance="trn1.2xlarge", no_live=True, usd_per_gb_down=0.5), 2.5
    )
    assert listed is not None
    assert listed.rates == Rates(1.34375, usd_per_gb_from_target=0.5)
    assert listed.source.startswith(
        "$1.34375 an hour for trn1.2xlarge in us-east-1, on-demand (snapshot: AWS price list"
    )
    assert "2026-09-24)" in listed.source


def test_an_instance_that_nobody_prices_is_refused_with_a_flag_that_there_is() -> None:
    with pytest.raises(
        OutriderError, match=r"trn9.*--usd_per_hour, in place of --instance, states one$"
    ):
        read_prices(GoalOptions(instance="trn9.2xlarge", no_live=True), 0.0)
    options = parse(["--role", "draft", "--prompt", "x", "--usd_per_hour", "1"])
    assert isinstance(options, GoalOptions)
    assert options.usd_per_hour == 1.0


@pytest.mark.parametrize(
    "flags",
    [["--architecture", "auto"], ["--no_bets"], ["--no-bets"], ["--acceptance", "classic"]],
    ids=str,
)
def test_a_flag_of_earlier_versions_gets_one_line_that_says_what_replaced_it(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--role", "draft", "--prompt", "x", *flags])
    (said,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert f"{flags[0].replace('-', '_').replace('__', '--')} is gone: " in said
