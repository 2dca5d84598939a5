"""What a run says of itself is what it did: its forwards, its price with its source, whether a
limit was kept, what a token takes, and what limits the speed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from inference.cost.billing import Billing, price_words
from inference.times import Times
from outrider.doctor import plan
from outrider.money import Goal, RunBudget
from outrider.terminal.summary import account, summary
from outrider.text.completion import Completion
from outrider.text.limits import Limit, arithmetic_reason, limit_of, time_lines
from tests.support.clock import Clock
from tests.support.commands import changed, completion

PRICED = Billing(3.6, 0.36, 0.0, draft_watts=10.0, target_watts=100.0, source="as given")


def numbers(line: str) -> list[float]:
    """The figures of a line, in their order; how it is worded is free."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def text(tokens: int = 100, seconds: float = 2.0, **more: object) -> Completion:
    return completion(tokens, **{"seconds": seconds, "finish_reason": "length"} | more)


def test_the_report_counts_forwards_and_tells_those_without_candidates_apart() -> None:
    done = text(
        forwards=40, lone=10, candidates=240, num_accepted_tokens=60, by_proposer={0: 45, 1: 15},
        draft_calls=110, draft_seconds=0.5, bytes_up=8000, bytes_down=700, messages_up=90,
        messages_down=40, time_to_first_token=0.5, arrivals=[0.5, 0.6, 0.8],
    )  # fmt: skip
    assert [numbers(line) for line in summary([done], 2.0).splitlines()] == [
        [3, 100],  # prompt tokens, generated
        [40, 2.5, 10, 3.0],  # forwards, tokens a forward; without candidates, tokens in the others
        [240, 60, 25.0, 45, 15],  # candidates, accepted, by the model, by copying
        [110, 1.1, 0.5],  # draft calls, a token, seconds
        [2.0, 50.0],  # seconds, tokens a second
        [0.5, 150, 50, 199, 99, 200],  # first token; gaps p50, p99, most
        [80, 7, 0.9, 0.4],  # bytes and messages a token, up and down
    ]
    beside = summary([replace(done, baseline=text(forwards=100, seconds=5.0))], 7.0).splitlines()
    assert [100, 40, 5.0, 2.0, 2.5] in map(numbers, beside)
    assert [2.0, 7.0, 50.0] in map(numbers, beside)  # seconds of its own, of all


def test_no_speed_up_is_given_where_no_draft_took_part() -> None:
    baseline = text(forwards=100, seconds=5.0)
    for forwards, candidates, speedup in ((100, 0, None), (60, 90, 2.5)):
        done = text(forwards=forwards, candidates=candidates, baseline=baseline)
        assert done.speedup == speedup
        assert ("speed-up" in summary([done], 7.0)) is (speedup is not None)


def test_texts_before_the_draft_was_loaded_and_beyond_the_budget_are_counted() -> None:
    late = [text(loading_seconds=4.25), text(), text(loading_seconds=3.0)]
    assert "this text was generated without it" in summary(late[:1], 2.0)
    assert "after 4.2 s: 2 texts were generated without it" in summary(late, 2.0)
    assert "without it" not in summary([text()], 2.0)
    cut, never = text(finish_reason="spent"), text(0, 0.0, finish_reason="spent")
    for texts, counted in (([cut, never, never], [[3, 4, 2]]), ([cut], [[1, 2]]), ([], [])):
        lines = summary([text(), *texts], 4.0).splitlines()
        assert [numbers(line) for line in lines if "--max_usd" in line] == counted


def spent(billing: Billing = PRICED) -> RunBudget:
    clock = Clock(0.0)
    paying = RunBudget(billing, clock=clock)
    with paying.charge():
        clock.now = 2.0
    return paying


def said(
    budget: RunBudget, texts: Sequence[Completion] = (text(),), min_tps: float | None = None
) -> list[str]:
    return account(texts, budget, Goal(min_tps=min_tps)).splitlines()


def test_cost_and_energy_are_told_by_the_token_with_their_sources() -> None:
    told = said(spent())
    assert [numbers(line) for line in told] == [[0.002, 20], [], [2, 100]]
    assert "as given" in told[1]
    told = said(spent(), [text(share_seconds=0.4, prefill_seconds=0.1)])
    assert numbers(told[1]) == [5]  # the price of forwards alone
    told = said(spent(Billing(3.6, None, 0.0, source="as given")))
    assert [numbers(line) for line in told] == [[0.002, 20], []]
    assert "no price of electricity" in told[0]


def test_without_prices_and_watts_nothing_is_said() -> None:
    assert said(spent(Billing())) == []
    assert said(spent(Billing(draft_watts=10.0)), [text(0)]) == []
    assert [numbers(line) for line in said(spent(), [text(0)])] == [[0.002]]


def test_a_minimum_speed_is_followed_by_what_was_measured() -> None:
    for goal, outcome in ((40.0, "met:"), (60.0, "missed:")):
        name, result, *rest = said(spent(), min_tps=goal)[-1].split()
        assert (name, result) == ("--min_tps", outcome)
        assert numbers(" ".join(rest)) == [50, goal]


@pytest.mark.parametrize(
    ("objective", "price", "words"),
    [
        ("total_cost", 12.5e-6, "$12.5 a million tokens"),
        ("api_cost", 1e-9, "$0.001 a million tokens"),
        ("energy_total", 2.0, "2 J a token"),
        ("draft_energy", 0.125, "0.125 J a token"),
        ("latency", 0.02, "20 ms a token"),
    ],
)
def test_prices_of_tokens_have_the_unit_of_what_is_weighed(
    objective: str, price: float, words: str
) -> None:
    assert price_words(objective, price) == words


# --- what limits the speed

TRIP = 0.02
MADE = text(
    seconds=1.4, forwards=40, lone=4, candidates=300, num_accepted_tokens=60,
    draft_calls=110, draft_seconds=0.5, model_seconds=1.2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("made", "round_trip", "limit"),
    [
        (MADE, TRIP, Limit.TARGET),
        (changed(MADE, draft_seconds=1.3), TRIP, Limit.DRAFT),
        (changed(MADE, lone=30), TRIP, Limit.LINK),
        (changed(MADE, lone=30), 0.001, Limit.DRAFT),
        (changed(MADE, num_accepted_tokens=2), TRIP, Limit.USELESS),
        (changed(MADE, draft_calls=0, draft_seconds=0.0), TRIP, Limit.TARGET),  # copies alone
        (changed(MADE, draft_calls=0, num_accepted_tokens=0), TRIP, Limit.NO_DRAFT),
    ],
)
def test_what_limits_a_text_is_told_from_what_was_measured(
    made: Completion, round_trip: float, limit: Limit
) -> None:
    assert limit_of(made, round_trip) is limit


@pytest.mark.parametrize(
    ("costs", "factor"),
    [
        ((1, 1, 1, 1, 1), ""),
        ((1, 2, 4, 8, 16), "2"),
        ((72, 127, 237, 457, 897), "1.8"),
        ((1, 3, 6, 11, 20), "3"),
        ((1, 1.2, 2, 4, 8), ""),
    ],
)
def test_where_nodes_cost_nearly_as_much_as_forwards_no_good_draft_pays(
    costs: tuple[float, ...], factor: str
) -> None:
    words = factor and f"a forward pass of 2 nodes takes {factor} times as long as of one node"
    times = Times({(1, 2**power): seconds for power, seconds in enumerate(costs)})
    assert arithmetic_reason(times) == words
    assert arithmetic_reason(Times()) == ""
    useless = changed(MADE, num_accepted_tokens=2)
    assert limit_of(useless, TRIP, words) is (Limit.ARITHMETIC if words else Limit.USELESS)
    undrafted = changed(useless, draft_calls=0)
    assert limit_of(undrafted, TRIP, words) is (Limit.ARITHMETIC if words else Limit.NO_DRAFT)
    assert limit_of(MADE, TRIP, words) is Limit.TARGET
    assert words in time_lines([useless], TRIP, times)[-1]
    found = [finding.text for finding in plan(times, 1e-3, TRIP) if finding.severity == "warning"]
    assert found == [f"hardly any draft gives a speed-up: {words}"] * bool(words)


def test_two_lines_have_the_times_of_target_draft_and_link_and_the_limit_of_the_slowest() -> None:
    slow = changed(MADE, seconds=2.8, draft_seconds=2.6)
    assert time_lines([MADE, slow], TRIP, Times()) == [
        "a token takes 28 ms: target 0.40 x 30 ms, draft 1.10 x 23.6 ms, round trip 20 ms",
        Limit.DRAFT.value,
    ]
    copied = changed(MADE, draft_calls=0, draft_seconds=0.0)
    assert "draft" not in time_lines([copied], TRIP, Times())[0]
    assert time_lines([changed(MADE, token_ids=[])], TRIP, Times()) == []
