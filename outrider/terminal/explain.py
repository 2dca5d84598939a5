"""Implements --explain: what a token costs now, what limits the speed, and what would change it. It
uses only what was measured while the text was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.command import glance, say
from inference.cost.billing import price_words
from outrider.money.goal import Goal
from outrider.text.completion import Completion
from outrider.text.limits import Limit, limit_of

AGAIN = 16
"""Tokens between two looks at what limits the text."""


def explained(done: Completion, round_trip: float, goal: Goal, law: str = "") -> str:
    """The explanation, a few lines long.

    round_trip: seconds of the link
    law: dear_law() of the target
    """
    tokens, forwards = len(done.token_ids), max(done.traffic.forwards, 1)
    lines = [f"a token takes {_ms(done.seconds / tokens)} ms{_price(done, goal)}"]
    if done.draft_calls:
        lines.append(
            f"  draft: {done.draft_calls / tokens:.2f} calls a token of "
            f"{_ms(done.draft_seconds / done.draft_calls)} ms, "
            f"{done.draft_seconds / done.seconds:.0%} of the time"
        )
    lines.append(
        f"  target: {forwards / tokens:.2f} forwards a token of "
        f"{_ms(done.traffic.model_seconds / forwards)} ms, {done.traffic.lone / forwards:.0%} of "
        "them without candidates"
    )
    lines.append(f"  link: a round trip of {_ms(round_trip)} ms")
    return "\n".join([*lines, f"  {limit_of(done, round_trip, law).value.format(law=law)}"])


@dataclass
class Explainer:
    """Tells the explanation: when the limit changes, and at the end of the text."""

    round_trip: float
    goal: Goal
    named: bool = False  # say which text it is about, beside others
    law: str = ""  # dear_law() of the target
    _limit: Limit | None = None
    _looked: int = field(default=0)

    def tell(self, done: Completion) -> None:
        """Look at the record now and then. Print when the limit has changed."""
        if len(done.token_ids) < self._looked + AGAIN:
            return
        self._looked = len(done.token_ids)
        if limit_of(done, self.round_trip, self.law) is not self._limit:
            glance(self._explained(done))

    def conclude(self, done: Completion) -> None:
        """Tell the explanation of the finished record."""
        if done.token_ids:
            say(self._explained(done))

    def _explained(self, done: Completion) -> str:
        self._limit = limit_of(done, self.round_trip, self.law)
        said = explained(done, self.round_trip, self.goal, self.law)
        return f"prompt {done.index}: {said}" if self.named else said


def _price(done: Completion, goal: Goal) -> str:
    price = goal.billing.figures(len(done.token_ids), done.usage)[goal.objective]
    return "" if price.value is None else f", {price_words(goal.objective, price.value)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
