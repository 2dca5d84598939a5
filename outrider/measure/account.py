"""Charges for a text, and this machine's energy meters while it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from inference.cost.billing import PER_MILLION, Billing
from inference.cost.energy import EnergyMeter, EnergyReader
from inference.cost.quantity import Figure
from inference.planner.prices import Usage
from outrider.text.completion import Completion


class Reading(NamedTuple):
    """One text, with the joules of this machine while it was made."""

    done: Completion
    joules: Figure


def read_meters(readers: Sequence[EnergyReader], complete: Callable[[], Completion]) -> Reading:
    """Make the text and read this machine's energy meanwhile."""
    with EnergyMeter(readers) as meter:
        done = complete()
    return Reading(done, meter.known)


UNPRICED = "no price was given (--usd_per_hour or --instance)"


@dataclass(frozen=True)
class Account:
    """Charges for texts. One user holds the target from request to last token."""

    billing: Billing
    whole: bool  # joules that are read here are those of draft and target together
    emulated: bool = False  # the target's times are not this machine's, so neither are its joules

    def at_home(self) -> Account:
        """The account of a target that runs on the user's own machine: nothing is rented."""
        source = "the user's own machine: nothing is rented"
        return Account(replace(self.billing, usd_per_hour=None, source=source), whole=True)

    def usd_per_million(self, tokens: float, usage: Usage, read: Figure) -> Figure:
        """US dollars a million tokens; a lower bound where a part is not known.

        read: joules of this machine
        """
        if not self.billing.priced:
            return Figure.unavailable(self.billing.source or UNPRICED)
        drafting = read if not self.whole and read.value is not None else None
        return self.billing.figures(tokens, usage, drafting)["known_cost"].times(PER_MILLION)

    def joules_per_million(self, tokens: float, usage: Usage, read: Figure) -> Figure:
        """Joules of draft and target a million tokens: as read where possible, else by the stated
        watts. Never of one side alone.
        """
        if self.emulated:
            read = Figure.unavailable(
                "the target is emulated: this machine's joules are not its own"
            )
        if self.whole and read.value is not None:
            return read.times(PER_MILLION / tokens)
        drafting = read if read.value is not None else None
        both = self.billing.figures(tokens, usage, drafting)["energy_total"]
        if both.value is None and read.value is None:
            both = Figure.unavailable(f"{read.source}; {both.source}")
        return both.times(PER_MILLION)

    @property
    def words(self) -> str:
        """The account in words, for below the table."""
        if not self.billing.priced:
            return f"$: {self.billing.source or UNPRICED}."
        share = self.billing.target_share
        part = "the whole target" if share == 1 else f"{share:g} of the target's hour"
        return (
            f"$: {self.billing.source}; {part} is charged from request to last token, or by its "
            "forwards alone; electricity and traffic only where priced, a lower bound where they "
            "are not."
        )

    def charges(self, reading: Reading) -> dict[str, Figure]:
        """Figures a million tokens of a text, by their names in its record."""
        done, read, tokens = reading.done, reading.joules, len(reading.done.token_ids)
        return {
            "usd_per_million": self.usd_per_million(tokens, done.usage, read),
            "usd_per_million_by_forwards": self.usd_per_million(
                tokens, done.usage_of_forwards, read
            ),
            "joules_per_million": self.joules_per_million(tokens, done.usage, read),
            "joules_here_per_million": read.times(PER_MILLION / tokens),
        }
