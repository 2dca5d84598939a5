"""Records of texts in a journal, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.cost.billing import Billing
from inference.cost.quantity import Figure
from outrider.measure.account import Account, Reading
from outrider.measure.figures import BASELINE, Row, summarise
from outrider.measure.journal import TextKey, Values
from tests.support.completions import changed, completion

UNREAD = Figure.unavailable("no counter here")
PRICED = Billing(3.6, 0.36, 0.0, 0.0, draft_watts=10.0, target_watts=100.0, source="given")
PAYING, FREE = Account(PRICED, whole=True), Account(Billing(), whole=True)


def record(
    rounds: int, per_round: int, seconds: float, account: Account = FREE, **fields: Any
) -> Values:
    """A text of rounds that all bring the same, the first one after one second.

    seconds: of each further round
    """
    score, limit = fields.pop("score", None), fields.pop("limit", rounds * per_round)
    made = completion(
        rounds * per_round,
        forwards=rounds,
        candidates=rounds * (per_round - 1),
        seconds=1 + (rounds - 1) * seconds,
        time_to_first_token=1.0,
        arrivals=[1 + number * seconds for number in range(rounds)],
        chunk_tokens=[per_round] * rounds,
        num_accepted_tokens=rounds * (per_round - 1),
        accepted_at_depth=[rounds] * (per_round - 1),
        finish_reason="length",
        device="cpu",
    )
    made = changed(made, **fields)
    charges = account.charges(Reading(made, UNREAD))
    costs = {name: figure.record() for name, figure in charges.items()}
    return {**made.record(), "score": score, "limit": limit, **costs}


def key(
    arm: str, name: int | str = 0, rtt_ms: float = 0.0, repeat: int = 0, turn: int = 0
) -> TextKey:
    return TextKey("own", "text", str(name), turn, repeat, rtt_ms, arm)


def rows(
    seconds: Mapping[str, float], texts: int = 6, rtt_ms: float = 0.0, account: Account = FREE
) -> list[Row]:
    """Rows of target-only at half a second a token, and of arms whose rounds of two tokens take so
    long.
    """
    made = {}
    for name in range(texts):
        made[key(BASELINE, name, rtt_ms)] = record(8, 1, 0.5, account)
        for arm, each in seconds.items():
            made[key(arm, name, rtt_ms)] = record(4, 2, each, account)
    return summarise(made, list(seconds))
