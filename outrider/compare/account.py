"""Computes dollars and joules of an arm's texts by the accounting of inference/cost. A figure that
nobody can know here is unavailable, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inference.cost.accounting import bill
from inference.cost.objective import PER_MILLION, Effort, Terms
from inference.cost.quantity import Figure
from outrider.compare.arms import Architecture
from outrider.options.groups import PriceOptions
from outrider.wishes import Stated, terms_of


@dataclass(frozen=True)
class Account:
    """How texts are charged. One user holds the target from request to last token."""

    terms: Terms
    source: str  # who states the price, or why there is none
    priced: bool
    whole: bool  # joules that are read here are those of draft and target together
    emulated: bool = False  # the target's times are not this machine's, so neither are its joules

    def of(self, architecture: Architecture) -> Account:
        """The account of an architecture. Nothing is rented where its target runs on the user's own
        machine.
        """
        if not architecture.on_this_machine:
            return self
        source = "the user's own machine: nothing is rented"
        return replace(self, source=source, priced=False, whole=True, emulated=False)

    def usd_per_million(self, tokens: float, effort: Effort, read: Figure) -> Figure:
        """US dollars a million tokens; a lower bound where a part is not known.

        read: joules of this machine
        """
        if not self.priced:
            return Figure.unavailable(self.source)
        usage = self.terms.usage(tokens, effort)
        if not self.whole and read.value is not None:
            usage = replace(usage, draft_joules=read)
        return bill(usage, self.terms.rates).known_cost.times(PER_MILLION)

    def joules_per_million(self, tokens: float, effort: Effort, read: Figure) -> Figure:
        """Joules of draft and target a million tokens: as read where possible, else by the stated
        watts. Never of one side alone.
        """
        if self.emulated:
            read = Figure.unavailable(
                "the target is emulated: this machine's joules are not its own"
            )
        if self.whole and read.value is not None:
            return read.times(PER_MILLION / tokens)
        usage = self.terms.usage(tokens, effort)
        if read.value is not None:
            usage = replace(usage, draft_joules=read)
        both = bill(usage, self.terms.rates).energy_total
        if both.value is None and read.value is None:
            both = Figure.unavailable(f"{read.source}; {both.source}")
        return both.times(PER_MILLION)

    @property
    def words(self) -> str:
        """The account in words, for below the table."""
        if not self.priced:
            return f"$: {self.source}."
        share = self.terms.target_share
        part = "the whole target" if share == 1 else f"{share:g} of the target's hour"
        return (
            f"$: {self.source}; {part} is charged from request to last token, or by its forwards "
            "alone; electricity and traffic only where priced, a lower bound where they are not."
        )


def open_account(
    draft: PriceOptions, stated: Stated | None, *, whole: bool, emulated: bool = False
) -> Account:
    """An account with the prices that somebody has stated."""
    if stated is None:
        reason = "no price was given (--usd_per_hour or --instance)"
        return Account(terms_of(draft, None), reason, False, whole, emulated)
    return Account(terms_of(draft, stated.rates), stated.source, True, whole, emulated)
