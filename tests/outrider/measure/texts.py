"""Records of texts in a journal, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.cost.billing import Billing, Figure
from outrider.measure.figures import Row, summarise
from outrider.measure.journal import TextKey, Values
from outrider.measure.run import BASELINE, Arm
from outrider.money import RunBudget
from outrider.text.completion import Completion
from tests.support.commands import changed, completion

UNREAD = Figure.unavailable("no counter here")
PRICED = Billing(3.6, 0.36, 0.0, draft_watts=10.0, target_watts=100.0, source="given")
FREE = Billing()


def arm(billing: Billing = PRICED, *, joint: bool = True, emulated: bool = False) -> Arm:
    """An arm that generates nothing and charges by these prices."""

    def fail(*_: object) -> Completion:
        raise NotImplementedError

    return Arm("hybrid", fail, fail, billing, joint, emulated)


def record(
    rounds: int, per_round: int, seconds: float, billing: Billing = FREE, **fields: Any
) -> Values:
    """A text of rounds that all bring the same, the first one after one second.

    seconds: of each further round
    """
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
    made = replace(made, cost=RunBudget(billing).cost(made.usage, len(made.token_ids)))
    costs = {name: figure.record() for name, figure in arm(billing).costs(made, UNREAD).items()}
    return {**made.record(), **costs}


def key(arm: str, name: int | str = 0, rtt_ms: float = 0.0, turn: int = 0) -> TextKey:
    return TextKey("own", "text", str(name), turn, 0, rtt_ms, arm)


def rows(
    seconds: Mapping[str, float], texts: int = 6, rtt_ms: float = 0.0, billing: Billing = FREE
) -> list[Row]:
    """Rows of target-only at half a second a token, and of arms whose rounds of two tokens take so
    long.
    """
    made = {}
    for name in range(texts):
        made[key(BASELINE, name, rtt_ms)] = record(8, 1, 0.5, billing)
        for one, each in seconds.items():
            made[key(one, name, rtt_ms)] = record(4, 2, each, billing)
    return summarise(made, list(seconds))
