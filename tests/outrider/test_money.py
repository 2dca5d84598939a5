"""Goals and budgets: prices follow a goal, and texts of one run are charged to one budget."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from inference.cost.billing import Billing
from inference.errors import InvalidRequest, OutriderError
from inference.planner.prices import SPEED, Prices, UnitPrices, Usage
from inference.text_log import Traffic
from outrider.money import EVERY, Goal, RunBudget, SteeredPrices, read_billing, read_goal
from outrider.options.groups import GoalOptions
from outrider.options.roles import TargetRole
from tests.support.clock import Clock
from tests.support.commands import Run
from tests.support.refusals import assert_refused

PRICED, HOURS = Billing(1.34375, 0.36, 0.09), Billing(1.34)


def test_a_goal_is_read_from_the_flags() -> None:
    def read(billing: Billing, **values: Any) -> Goal:
        found = read_goal(GoalOptions(**values), billing)
        return replace(found, billing=Billing(), battery=True)

    whole = replace(PRICED, draft_watts=20.0)
    assert read(Billing()) == Goal("api_cost")
    assert read(whole, cs="balanced") == Goal("total_cost", 0.5)
    assert read(whole, cs="30", objective="draft_energy") == Goal("draft_energy", 0.3)
    assert read(PRICED, min_tps=9.0) == Goal("api_cost", min_tps=9.0)
    assert Goal().speed_alone
    assert not Goal(weight=0.01).speed_alone
    assert not Goal(min_tps=1.0).speed_alone


def test_a_cost_without_a_price_says_how_to_give_one() -> None:
    priceless: list[dict[str, Any]] = [{"cs": "1"}, {"min_tps": 9.0}]
    for values in (*priceless, {"cs": "cost", "objective": "total_cost"}):
        call = partial(read_goal, GoalOptions(**values), Billing())
        assert_refused(call, ["--usd_per_hour", "--instance"])
    both = GoalOptions(cs="cost", objective="energy_total")
    assert_refused(lambda: read_goal(both, Billing(draft_watts=20.0)), ["watts of the target"])


ALL = replace(PRICED, usd_per_gb=0.0)


@pytest.mark.parametrize(
    ("objective", "billing", "said"),
    [
        (None, Billing(), "without a price"),
        (None, HOURS, "api_cost is proportional to time"),
        ("latency", HOURS, "latency is proportional to time"),
        (None, replace(ALL, draft_watts=0.0), "total_cost is proportional to time"),
        ("draft_energy", HOURS, "watts of the draft"),
        (None, replace(ALL, draft_watts=9.0), ""),
        (None, replace(ALL, draft_watts=0.0, usd_per_gb=0.1), ""),
        ("draft_energy", replace(HOURS, draft_watts=9.0), ""),
    ],
)
def test_where_every_position_of_the_knob_asks_for_the_same_none_is_offered(
    objective: Any, billing: Billing, said: str
) -> None:
    options = GoalOptions(objective=objective)
    unsteered = read_goal(options, billing).unsteered
    assert said in unsteered
    assert bool(said) == bool(unsteered)
    half = options.replace(cs="50")
    if said:
        assert_refused(lambda: read_goal(half, billing), [])
    else:
        assert read_goal(half, billing).weight == 0.5


@pytest.mark.parametrize(
    ("objective", "billing", "offered"),
    [
        (None, HOURS, False),  # cost is time
        (None, replace(PRICED, draft_watts=30.0), False),  # 0.8 % of the target's price
        (None, replace(PRICED, draft_watts=300.0), False),  # 8 %
        (None, replace(PRICED, draft_watts=1600.0), True),  # 43 %
        (None, replace(PRICED, draft_watts=0.0, usd_per_gb=90.0), True),  # dear traffic
        ("energy_total", Billing(draft_watts=30.0, target_watts=150.0), False),
        ("energy_total", Billing(draft_watts=30.0, target_watts=60.0), True),
        ("draft_energy", Billing(draft_watts=30.0), True),
    ],
)
def test_a_knob_is_offered_where_drafting_is_dear_beside_the_target(
    objective: Any, billing: Billing, offered: bool
) -> None:
    goal = read_goal(GoalOptions(objective=objective), billing)
    assert bool(goal.pointless) is not offered


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_where_cost_is_time_every_weight_decides_as_speed_alone(weight: float) -> None:
    random, cost = Random(7), HOURS.unit_prices("api_cost")
    fast = Prices(battery=True)
    steered = SteeredPrices(battery=True, goal=Goal("api_cost", weight), cost=cost)
    for _ in range(500):
        tokens = random.randint(1, 6)
        usage = Usage(*(random.expovariate(1 / unit) for unit in (0.02, 0.03, 300.0, 50.0)))
        gains = [random.uniform(0, 2) for _ in range(6)]
        seconds = [random.expovariate(1 / 0.3) for _ in range(7)].__getitem__
        for prices in (fast, steered):
            prices.committed(tokens, usage)
        assert steered.width(gains, seconds) == fast.width(gains, seconds)
        assert steered.min_value() == fast.min_value()


@pytest.mark.parametrize(
    ("values", "billing", "named"),
    [
        ({"cs": "cost"}, Billing(1.0, 0.3, draft_watts=20.0), "needs --usd_per_gb (0"),
        ({"cs": "cost"}, PRICED, "needs --draft_watts (0"),
        ({"min_tps": 9.0}, replace(PRICED, usd_per_kwh=None, draft_watts=20.0), "--usd_per_kwh (0"),
        ({"cs": "cost"}, HOURS, ""),  # the hours alone are priced
        ({}, PRICED, ""),  # nothing is weighed
        ({"cs": "cost"}, replace(PRICED, draft_watts=20.0), ""),  # all is priced
        ({"cs": "cost", "objective": "api_cost"}, PRICED, ""),  # as the user says
    ],
)
def test_prices_that_are_stated_and_not_weighed_are_said_with_the_flags_that_are_missing(
    values: dict[str, Any], billing: Billing, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(InvalidRequest):  # hours alone are proportional to time
        read_goal(GoalOptions(**values), billing)
    told = capsys.readouterr().err
    assert told.startswith("note: ") == bool(named)
    assert named in told


def test_a_price_is_the_users_the_instances_or_the_targets_own_with_its_source() -> None:
    assert not read_billing(GoalOptions()).described(0.0).priced
    described = Billing(2.5, source="$2.5 an hour, as the target says")
    assert read_billing(GoalOptions()).described(2.5) == described
    given = GoalOptions(usd_per_hour=1.0, usd_per_kwh=0.3, usd_per_gb=0.0)
    stated = Billing(1.0, 0.3, 0.0, source="$1 an hour, as given")
    assert read_billing(given).described(2.5) == stated
    options = GoalOptions(instance="trn1.2xlarge", usd_per_gb=0.5)
    listed = read_billing(options).described(2.5)
    assert replace(listed, source=None) == Billing(1.34375, usd_per_gb=0.5)
    said = ("$1.34375 an hour", "trn1.2xlarge in us-east-1, on-demand", "snapshot", "2026-09-24)")
    assert all(words in (listed.source or "") for words in said)
    unpriced = GoalOptions(instance="trn9.2xlarge")
    assert_refused(lambda: read_billing(unpriced), ["trn9", "--usd_per_hour"], OutriderError)


COST = UnitPrices(wall=1e-3, drafting=1e-2)
FAST, SLOW = Usage(0.01, 0.02), Usage(0.04, 0.001)


def steered(goal: Goal, usage: Usage, tokens: int = 10 * EVERY) -> SteeredPrices:
    """Prices after so many tokens of this usage."""
    prices = SteeredPrices(goal=goal, cost=COST, expected=FAST)
    for _ in range(tokens):
        prices.committed(1, usage)
    return prices


def test_drafting_gets_dearer_with_the_weight_of_cost() -> None:
    def relative(goal: Goal) -> float:
        """Price of drafting against waiting."""
        tariff = steered(goal, FAST).tariff
        return tariff.drafting / tariff.wall

    shares = [relative(Goal(weight=weight)) for weight in (0.0, 0.3, 0.7, 1.0)]
    assert shares == sorted(set(shares))
    assert shares[0] == SPEED.drafting / SPEED.wall
    assert shares[-1] == pytest.approx(COST.drafting / COST.wall)
    assert steered(Goal(weight=0.3), SLOW).weight == 0.3


def test_a_minimum_speed_moves_the_weight_to_cost_while_there_is_room_and_back() -> None:
    prices = steered(Goal(min_tps=50.0), FAST)  # 100, and then 25 tokens a second
    towards_cost = prices.weight
    assert towards_cost > 0
    for _ in range(40 * EVERY):
        prices.committed(1, SLOW)
    assert prices.weight < towards_cost
    assert steered(Goal(min_tps=1e6), SLOW).weight == 0.0
    assert steered(Goal(min_tps=1e-6), SLOW, 100 * EVERY).weight == 1.0


DOLLAR_A_SECOND = Billing(3600.0)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


def test_the_targets_seconds_are_paid_once_by_the_texts_that_use_them_until_the_limit(
    clock: Clock,
) -> None:
    budget = RunBudget(DOLLAR_A_SECOND, 7.0, clock)
    with budget.charge() as alone:
        clock.now = 1.0
        assert (alone.usd, budget.spent) == (1.0, 1.0)
    clock.now = 3.0  # between texts
    with suppress(InvalidRequest), budget.charge():
        clock.now = 4.0
        raise InvalidRequest("a text that fails")
    with ExitStack() as stack:
        first, second = (stack.enter_context(budget.charge()) for _ in range(2))
        clock.now = 8.0
        second.close()
        clock.now = 8.9
        assert not budget.empty
        clock.now = 9.0
        assert budget.empty
    assert (first.usd, second.usd, budget.spent) == (3.0, 2.0, 7.0)


def test_drafting_and_bytes_of_all_texts_add_up(clock: Clock) -> None:
    budget = RunBudget(Billing(0.0, 3.6, 1.0, draft_watts=10.0), clock=clock)
    for _ in range(2):
        with budget.charge() as charge:
            charge.take(1.0, Traffic(bytes_up=500, bytes_down=50))
            charge.take(2.0, Traffic(bytes_up=1000, bytes_down=100))
    assert budget.usage == Usage(0.0, 4.0, 2000, 200)
    assert budget.spent == pytest.approx(4.0 * 10.0 * 1e-6 + 2200e-9)
    assert charge.usd == pytest.approx(budget.spent / 2)


@pytest.mark.parametrize(("billing", "usd"), [(DOLLAR_A_SECOND, 1e9), (Billing(), None)])
def test_without_a_limit_it_is_never_empty_and_without_a_price_nothing_has_one(
    clock: Clock, billing: Billing, usd: float | None
) -> None:
    budget = RunBudget(billing, clock=clock)
    with budget.charge() as charge:
        clock.now = 1e9
    assert not budget.empty
    assert (charge.usd, budget.spent) == (usd, usd or 0.0)


SERVED = TargetRole(port=0, batch=2, max_tree_nodes=16, sequence_length=128)
TEXT = [*("--max_new_tokens", "60", "--temperature", "0", "--json"), *("--usd_per_hour", "3600")]
BY_THE_BYTE = [
    "--usd_per_hour", "0.001", "--usd_per_gb", "1e6", "--usd_per_kwh", "0", "--draft_watts", "0",
]  # fmt: skip
"""A thousandth of a dollar for a byte; a token takes some 20 of them from the target alone."""


@pytest.mark.parametrize("trees", [[], ["--gamma", "3"]], ids=["growing", "chain"])
def test_a_run_that_has_spent_its_money_ends_with_what_was_made_and_begins_no_text(
    run: Run, port: str, tmp_path: Path, trees: list[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("def read_lines(path):\nclass Queue:\nimport os\n")
    flags = ["--port", port, "--prompt_text", tmp_path / "prompts.txt", "--batch", "1", *trees]
    ended = run("run", *TEXT, *flags, *BY_THE_BYTE, "--max_usd", "1.2")
    first, *others = ended.records
    whole = run("run", *TEXT, *flags, *BY_THE_BYTE, "--max_usd", "1000").records
    assert "stopped by --max_usd: 3 of 3 texts, 2 of them before they started" in ended.err
    assert first["finish_reason"] == "spent"
    assert 0 < len(first["token_ids"]) < 60
    assert first["token_ids"] == whole[0]["token_ids"][: len(first["token_ids"])]
    for done in others:
        facts = [done[name] for name in ("finish_reason", "token_ids", "text", "usd", "bytes_up")]
        assert facts == ["spent", [], "", 0.0, 0]
    assert [done["finish_reason"] for done in whole] == ["length"] * 3


def test_a_target_only_run_for_comparison_costs_nothing_and_is_as_long_as_the_text(
    run: Run, port: str
) -> None:
    flags = ["--port", port, "--baseline", *BY_THE_BYTE, "--max_usd", "0.6"]
    ended = run("run", "def read_lines(path):", *TEXT, *flags)
    (cut,), (told,) = ended.records, re.findall(r"(?m)^cost \$([0-9.]+),", ended.err)
    assert cut["finish_reason"] == "spent"
    assert cut["baseline"]["token_ids"] == cut["token_ids"]
    assert cut["baseline"]["usd"] is None
    assert "identical texts: 1 of 1, 1 of them up to where they stopped" in ended.err
    assert float(told) == pytest.approx(cut["usd"], abs=1e-6)
