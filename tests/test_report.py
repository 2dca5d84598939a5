"""What a run says of itself is what it did: its forwards, its price with its source, and whether a
limit was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inference.cost.accounting import Rates
from inference.cost.objective import Terms, Wish
from outrider.completion import Completion
from outrider.purse import Purse
from outrider.report import account, summary

RATES = Rates(3.6, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0)
TERMS = Terms(RATES, draft_watts=10.0, target_watts=100.0)


def text(tokens: int = 100, seconds: float = 2.0, **more: object) -> Completion:
    done = Completion(
        0,
        "p",
        0,
        3,
        token_ids=list(range(tokens)),
        seconds=seconds,
        finish_reason="length",
    )
    return replace(done, **more)  # type: ignore[arg-type]


def test_the_report_counts_forwards_and_tells_those_without_candidates_apart() -> None:
    done = text(
        forwards=40,
        lone_forwards=10,
        num_draft_tokens=240,
        num_accepted_tokens=60,
        accepted_by={"model": 45, "copy": 15},
        draft_calls=110,
        draft_seconds=0.5,
        bytes_up=8000,
        bytes_down=700,
        messages_up=90,
        messages_down=40,
    )
    said = summary([done], 2.0).splitlines()
    assert said == [
        "prompt tokens 3, generated 100",
        "forwards 40, 2.50 tokens a forward (acceptance length); 10 of them without candidates, "
        "3.00 tokens in the others",
        "candidates computed 240, accepted 60 (25.0%): by model 45, copy 15",
        "draft calls 110, 1.10 a token, 0.50 s",
        "time 2.00 s, 50.0 tokens/s",
        "bytes a token 80 up, 7 down; messages 0.90 up, 0.40 down",
    ]
    beside = replace(done, baseline=text(forwards=100, seconds=5.0))
    assert "100 forwards instead of 40, 5.00 s instead of 2.00 s: speed-up 2.50" in summary(
        [beside], 7.0
    )


def test_seconds_of_target_only_runs_are_not_the_texts_own() -> None:
    assert "time 2.00 s, 50.0 tokens/s" in summary([text()], 2.0)
    assert "time 2.00 s of 7.00 s with target-only runs, 50.0 tokens/s" in summary(
        [text(baseline=text())], 7.0
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spent(
    seconds: float, terms: Terms = TERMS, source: str | None = "$3.6 an hour, as given"
) -> Purse:
    clock = Clock()
    paying = Purse(terms, source=source, clock=clock)
    with paying.text():
        clock.now = seconds
    return paying


def said(purse: Purse, wish: Wish = Wish(), texts: Sequence[Completion] = (text(),)) -> list[str]:  # noqa: B008  # both are frozen or read only
    return account(texts, purse, wish).splitlines()


def test_cost_and_energy_are_told_by_the_token_with_their_sources() -> None:
    assert said(spent(2.0)) == [
        "cost $0.002000, $20 a million tokens",
        "prices: $3.6 an hour, as given",
        "energy 2 J a token (no time of the draft; 100 W assumed)",
    ]


def test_where_the_forwards_alone_are_paid_a_token_has_another_price() -> None:
    told = said(spent(2.0), texts=[text(share_seconds=0.4, prefill_seconds=0.1)])
    assert told[1] == "by the target's forwards alone $5 a million tokens"


def test_a_cost_that_leaves_something_out_says_what() -> None:
    bare = spent(
        2.0,
        Terms(Rates(3.6, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0), target_share=0.5),
    )
    assert said(bare) == [
        "cost $0.001000, $10 a million tokens, at least (no price of electricity was given)",
        "prices: $3.6 an hour, as given; 0.5 of the hour is charged",
    ]


def test_without_prices_and_watts_nothing_is_said() -> None:
    assert said(spent(2.0, Terms(Rates(0.0)), source=None)) == []
    assert said(spent(2.0, source=None), texts=[text(0)]) == []
    assert said(spent(2.0), texts=[text(0)]) == ["cost $0.002000"]


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (Wish(min_tps=40.0), "--min_tps kept: measured 50 tokens/s of 40 wanted"),
        (Wish(min_tps=60.0), "--min_tps missed: measured 50 tokens/s of 60 wanted"),
        (
            Wish("api_cost", max_per_token=25e-6),
            "--max_usd_per_1m kept: measured $20 a million tokens of $25 wanted",
        ),
        (
            Wish("total_cost", max_per_token=5e-6),
            "--max_usd_per_1m missed: measured $20 a million tokens of $5 wanted",
        ),
        (
            Wish("energy_total", max_per_token=1.5),
            "--max_joules_per_token missed: measured 2 J a token of 1.5 wanted",
        ),
    ],
)
def test_a_limit_is_followed_by_what_was_measured(wish: Wish, line: str) -> None:
    assert said(spent(2.0), wish)[-1] == line


def test_texts_that_the_purse_ended_are_counted_apart_from_those_that_never_began() -> None:
    cut, never = text(finish_reason="spent"), text(0, 0.0, finish_reason="spent")
    assert "ended by --max_usd: 3 of 4 texts, 2 of them before they began" in summary(
        [text(), cut, never, never], 4.0
    )
    assert summary([text(), cut], 4.0).endswith("ended by --max_usd: 1 of 2 texts")
    assert "--max_usd" not in summary([text()], 2.0)
