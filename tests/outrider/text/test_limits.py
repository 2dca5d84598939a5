"""A summary says what a token takes, and what limits the speed."""

from __future__ import annotations

import pytest

from inference.cost.billing import price_words
from inference.times import Times
from outrider.doctor import plan
from outrider.text.completion import Completion
from outrider.text.limits import Limit, arithmetic_reason, limit_of, time_lines
from tests.support.commands import changed, completion

TRIP = 0.02
MADE = completion(
    100, seconds=1.4, forwards=40, lone=4, candidates=300, num_accepted_tokens=60,
    draft_calls=110, draft_seconds=0.5, model_seconds=1.2,
)  # fmt: skip


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
    said = f"a forward pass of 2 nodes takes {factor} times as long as of one node"
    words = said if factor else ""
    times = Times({(1, 2**power): seconds for power, seconds in enumerate(costs)})
    assert arithmetic_reason(times) == words
    assert arithmetic_reason(Times()) == ""
    useless, dear = changed(MADE, num_accepted_tokens=2), Limit.ARITHMETIC
    assert limit_of(useless, TRIP, words) is (dear if words else Limit.USELESS)
    silent = changed(useless, draft_calls=0)
    assert limit_of(silent, TRIP, words) is (dear if words else Limit.NO_DRAFT)
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
