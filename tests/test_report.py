"""What a run says of itself is what it did: rounds apart from stretches, its price with its source, and whether a limit was kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from inference.adaptive import decode_adaptive
from inference.cost import Rates
from inference.engine import Engine
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY
from inference.model.decoder import Decoder
from inference.objective import Terms, Wish
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.completion import Completion, Request, speculate_adaptive, target_only
from outrider.models import EMBEDDED
from outrider.purse import Purse
from outrider.report import account, silent, summary
from tests.pairs import perturbed
from tests.test_adaptive import LateVerifier, Wavering, adaptive, knowledge
from tests.test_lossless import prompt_of

TOKENS = 80
RATES = Rates(3.6, usd_per_kwh=0.36, usd_per_gb_to_target=0.0, usd_per_gb_from_target=0.0)
TERMS = Terms(RATES, draft_watts=10.0, target_watts=100.0)


def wavering(served: Engine) -> tuple[LateVerifier, Wavering]:
    known = knowledge(link=0.001)
    return LateVerifier(served), Wavering(
        known, Wish(), None, frozenset([DISTRIBUTED, TARGET_ONLY]), most_nodes=63
    )


def test_a_step_says_which_architecture_made_it(served: Engine) -> None:
    verifier, course = wavering(served)
    drafter = adaptive(perturbed(1, 0.02), course.known)
    with closing(verifier), closing(drafter):
        steps = list(
            decode_adaptive(
                prompt_of(30), SamplingParams(), drafter, verifier, course, TOKENS, frozenset()
            )
        )
    stretches = [step for step in steps if step.stretch is not None]
    assert {step.stretch for step in stretches} == {TARGET_ONLY}
    assert all(len(step.tokens) == len(step.tree) == 1 for step in stretches)
    assert drafter.drafted.rounds == len(steps) - len(stretches)


def test_tokens_between_rounds_are_no_rounds(served: Engine, target: Decoder) -> None:
    verifier, course = wavering(served)
    request = Request(0, "", prompt_of(30), SamplingParams(), TOKENS, frozenset())
    drafter = adaptive(perturbed(1, 0.02), course.known)
    done = speculate_adaptive(
        request, drafter, verifier, course, Tokenizer(Path(EMBEDDED) / "target"), silent, Event()
    )
    assert done.made_by == {
        DISTRIBUTED: TOKENS - done.stretch_tokens,
        TARGET_ONLY: done.stretch_tokens,
    }
    assert 0 < done.stretch_tokens < TOKENS
    assert done.rounds == drafter.drafted.rounds
    assert done.num_accepted_tokens + done.rounds == TOKENS - done.stretch_tokens
    assert done.acceptance_length == (TOKENS - done.stretch_tokens) / done.rounds
    alone = target_only(
        request, LateVerifier(served), Tokenizer(Path(EMBEDDED) / "target"), silent, Event()
    )
    assert (alone.made_by, alone.stretch_tokens, alone.rounds) == ({TARGET_ONLY: TOKENS}, 0, TOKENS)


def text(tokens: int = 100, seconds: float = 2.0, **more: object) -> Completion:
    done = Completion(
        0,
        "p",
        0,
        3,
        token_ids=list(range(tokens)),
        seconds=seconds,
        finish_reason="length",
        made_by={DISTRIBUTED: tokens},
    )
    return replace(done, **more)  # type: ignore[arg-type]


def test_the_report_counts_rounds_by_what_was_drafted_and_says_who_made_the_rest() -> None:
    mixed = {DISTRIBUTED: 40, FUSED: 60}
    done = text(
        rounds=10,
        num_draft_tokens=90,
        num_accepted_tokens=30,
        made_by=mixed,
        stretch_tokens=60,
        expected_acceptance_length=4.5,
        bytes_up=800,
    )
    said = summary([done], 2.0)
    assert "generated 100, rounds 10" in said
    assert "4.00 tokens a round (acceptance length)" in said
    assert "expected 4.50 tokens a round, got 4.00" in said
    assert "made by fused: 60 tokens, distributed: 40 tokens" in said
    assert "bytes a token 8 up, 0 down" in said
    alone = replace(done, baseline=text(rounds=100, seconds=5.0))
    assert "passes" not in summary([alone], 7.0)
    assert "5.00 s instead of 2.00 s: speed-up 2.50" in summary([alone], 7.0)


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
