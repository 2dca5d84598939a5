"""What --explain says: what a token takes, what limits it, and no more often than that changes."""

from __future__ import annotations

import pytest

from inference.cost.billing import Billing, price_words
from inference.times import LatencyModel
from outrider.doctor.checks import plan
from outrider.money.goal import Goal
from outrider.terminal.explain import AGAIN, Explainer, explained
from outrider.text.completion import Completion
from outrider.text.limits import Limit, dear_law, limit_of
from tests.support.completions import changed, completion

GOAL = Goal("api_cost", billing=Billing(3.6, target_watts=100.0, draft_watts=10.0))
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
    ("law", "factor"),
    [
        ((1, 1, 1, 1, 1), ""),
        ((1, 2, 4, 8, 16), "2"),
        ((72, 127, 237, 457, 897), "1.8"),
        ((1, 3, 6, 11, 20), "3"),
        ((1, 1.2, 2, 4, 8), ""),
    ],
)
def test_where_nodes_cost_nearly_as_much_as_forwards_no_good_draft_pays(
    law: tuple[float, ...], factor: str
) -> None:
    said = f"a forward of 2 nodes takes {factor} times as long as one of one node"
    words = said if factor else ""
    times = LatencyModel({(1, 2**power): seconds for power, seconds in enumerate(law)})
    assert dear_law(times) == words
    assert dear_law(LatencyModel()) == ""
    useless, dear = changed(MADE, num_accepted_tokens=2), Limit.ARITHMETIC
    assert limit_of(useless, TRIP, words) is (dear if words else Limit.USELESS)
    silent = changed(useless, draft_calls=0)
    assert limit_of(silent, TRIP, words) is (dear if words else Limit.NO_DRAFT)
    assert limit_of(MADE, TRIP, words) is Limit.TARGET
    assert words in explained(useless, TRIP, Goal("api_cost"), words).splitlines()[-1]
    found = [finding.text for finding in plan(times, 1e-3, TRIP) if finding.severity == "warning"]
    assert found == [f"hardly any draft pays: {words}"] * bool(words)


def test_the_block_has_the_times_of_draft_target_and_link_and_the_price_that_is_known() -> None:
    assert explained(MADE, TRIP, GOAL).splitlines() == [
        "a token takes 14 ms, $14 a million tokens",
        "  draft: 1.10 calls a token of 4.55 ms, 36% of the time",
        "  target: 0.40 forwards a token of 30 ms, 10% of them without candidates",
        "  link: a round trip of 20 ms",
        f"  {Limit.TARGET.value}",
    ]
    unpriced = explained(MADE, TRIP, Goal("energy_total"))
    assert unpriced.splitlines()[0] == "a token takes 14 ms"


def test_it_speaks_again_only_where_something_else_limits_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    explainer = Explainer(TRIP, Goal("api_cost"))
    far = changed(MADE, lone=30)
    explainer.tell(MADE)
    explainer.tell(changed(MADE, token_ids=list(range(100 + AGAIN))))
    assert capsys.readouterr().err.count("limited by") == 1
    explainer.tell(changed(far, token_ids=list(range(101 + AGAIN))))
    assert not capsys.readouterr().err  # not so soon
    explainer.tell(changed(far, token_ids=list(range(100 + 2 * AGAIN))))
    assert Limit.LINK.value in capsys.readouterr().err


@pytest.mark.parametrize(("named", "begins"), [(False, "a token"), (True, "prompt 0: a token")])
def test_beside_others_the_text_is_named(
    capsys: pytest.CaptureFixture[str], named: bool, begins: str
) -> None:
    Explainer(TRIP, Goal("api_cost"), named).conclude(MADE)
    assert capsys.readouterr().err.startswith(begins)
