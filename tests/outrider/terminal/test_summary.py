"""What a run says of itself is what it did: its forwards, its price with its source, and whether a
limit was kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from inference.cost.billing import Billing
from outrider.money import Goal, RunBudget
from outrider.terminal.summary import account, summary
from outrider.text.completion import Completion
from tests.support.clock import Clock
from tests.support.commands import completion

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
    beside = replace(done, baseline=text(forwards=100, seconds=5.0))
    assert [100, 40, 5.0, 2.0, 2.5] in map(numbers, summary([beside], 7.0).splitlines())


def test_no_speed_up_is_given_where_no_draft_took_part() -> None:
    alone = text(forwards=100, candidates=0, baseline=text(forwards=100, seconds=5.0))
    assert alone.speedup is None
    assert "speed-up" not in summary([alone], 7.0)
    copied = text(forwards=60, candidates=90, baseline=text(forwards=100, seconds=5.0))
    assert copied.speedup == 2.5
    assert "speed-up" in summary([copied], 7.0)


def test_a_text_that_ended_before_its_draft_was_loaded_is_reported() -> None:
    late = [text(loading_seconds=4.25), text(), text(loading_seconds=3.0)]
    assert "this text was generated without it" in summary(late[:1], 2.0)
    assert "after 4.2 s: 2 texts were generated without it" in summary(late, 2.0)
    assert "without it" not in summary([text()], 2.0)


def test_seconds_of_target_only_runs_are_not_the_texts_own() -> None:
    beside = summary([text(baseline=text())], 7.0).splitlines()
    assert [2.0, 7.0, 50.0] in map(numbers, beside)


def spent(seconds: float, billing: Billing = PRICED) -> RunBudget:
    clock = Clock(0.0)
    paying = RunBudget(billing, clock=clock)
    with paying.charge():
        clock.now = seconds
    return paying


SPEED = Goal()


def said(
    budget: RunBudget, goal: Goal = SPEED, texts: Sequence[Completion] = (text(),)
) -> list[str]:
    return account(texts, budget, goal).splitlines()


def test_cost_and_energy_are_told_by_the_token_with_their_sources() -> None:
    told = said(spent(2.0))
    assert [numbers(line) for line in told] == [[0.002, 20], [], [2, 100]]
    assert "as given" in told[1]


def test_where_the_forwards_alone_are_paid_a_token_has_another_price() -> None:
    told = said(spent(2.0), texts=[text(share_seconds=0.4, prefill_seconds=0.1)])
    assert numbers(told[1]) == [5]


def test_a_cost_that_leaves_something_out_says_what() -> None:
    told = said(spent(2.0, Billing(3.6, None, 0.0, source="as given")))
    assert [numbers(line) for line in told] == [[0.002, 20], []]
    assert "no price of electricity" in told[0]


def test_without_prices_and_watts_nothing_is_said() -> None:
    assert said(spent(2.0, Billing())) == []
    assert said(spent(2.0, Billing(draft_watts=10.0)), texts=[text(0)]) == []
    assert [numbers(line) for line in said(spent(2.0), texts=[text(0)])] == [[0.002]]


def test_a_minimum_speed_is_followed_by_what_was_measured() -> None:
    for goal, outcome in ((40.0, "met:"), (60.0, "missed:")):
        name, said_of_it, *rest = said(spent(2.0), Goal(min_tps=goal))[-1].split()
        assert (name, said_of_it) == ("--min_tps", outcome)
        assert numbers(" ".join(rest)) == [50, goal]


def test_texts_that_the_budget_ended_are_counted_apart_from_those_that_never_began() -> None:
    cut, never = text(finish_reason="spent"), text(0, 0.0, finish_reason="spent")

    def ended(*texts: Completion) -> list[float]:
        lines = [line for line in summary(texts, 4.0).splitlines() if "--max_usd" in line]
        return [number for line in lines for number in numbers(line)]

    assert ended(text(), cut, never, never) == [3, 4, 2]
    assert ended(text(), cut) == [1, 2]
    assert ended(text()) == []
