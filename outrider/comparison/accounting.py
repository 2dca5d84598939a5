"""Dollars and joules of an arm, by the one accounting of inference/cost/accounting.py; what nobody can know
here is unavailable, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.cost.accounting import Rates, Usage, bill
from inference.cost.quantity import Figure, at_least
from outrider.comparison.arms import FUSED_LOCAL, LOCAL
from outrider.comparison.gauges import Reading
from outrider.comparison.options import CompareOptions

TOKENS = 1e6
"""Prices are of so many."""


@dataclass(frozen=True)
class Account:
    """How an arm's texts are charged. rates: None where no price was given.  own_machine: the
    target runs on this machine, too.
    """

    rates: Rates | None
    source: str
    own_machine: bool

    def usd_per_million(
        self, architecture: str, readings: Sequence[Reading], *, by_forwards: bool = False
    ) -> Figure:
        """One user holds the whole target from request to last token, or (by_forwards) pays for
        prefill and forwards alone. A lower bound, which its source says, where a part is not known.
        """
        if self.rates is None:
            return Figure.unavailable(self.source)
        if architecture in (LOCAL, FUSED_LOCAL):
            return Figure.unavailable("the user's own machine: nothing is rented")
        tokens = sum(len(reading.done.token_ids) for reading in readings)
        wall, busy = (
            Figure.measured(value, "this run's clock") for value in self._seconds(readings)
        )
        wall = busy if by_forwards else wall
        shared = Figure.unavailable("draft and target share this machine: its joules are not split")
        usage = Usage(
            tokens=tokens,
            wall_seconds=wall,
            busy_seconds=busy,
            target_share=1.0,
            bytes_to_target=sum(reading.done.bytes_up for reading in readings),
            bytes_from_target=sum(reading.done.bytes_down for reading in readings),
            draft_joules=shared
            if self.own_machine
            else at_least([reading.joules for reading in readings]),
            target_joules=shared
            if self.own_machine
            else Figure.unavailable("the target's machine is not read from here"),
        )
        return bill(usage, self.rates).known_cost.times(TOKENS)

    def joules_per_token(self, readings: Sequence[Reading]) -> Figure:
        """Of this machine as a whole, idle power included: draft and target where both run here,
        else what the user's side takes.
        """
        tokens = sum(len(reading.done.token_ids) for reading in readings)
        return at_least([reading.joules for reading in readings]).times(1 / tokens)

    @property
    def words(self) -> str:
        """For below the table."""
        machine = "draft and target together" if self.own_machine else "the user's side only"
        joules = f"J per token: this machine as a whole, idle power included ({machine})."
        if self.rates is None:
            return f"$: {self.source}. {joules}"
        return (
            f"$ per million tokens: {self.source}; one user holds the whole target from "
            f"request to last token; in brackets where its forwards alone are paid. {joules}"
        )

    def _seconds(self, readings: Sequence[Reading]) -> tuple[float, float]:
        done = [reading.done for reading in readings]
        return sum(text.seconds for text in done), sum(
            text.share_seconds + text.prefill_seconds for text in done
        )


def open_account(options: CompareOptions) -> Account:
    """The prices that the user gave, or those of --instance; raises Unpriced where no source has
    that one.
    """
    own_machine = options.target_host is None
    if options.usd_per_hour is not None:
        rates = Rates(options.usd_per_hour, usd_per_kwh=options.usd_per_kwh)
        return Account(
            rates,
            f"${options.usd_per_hour:g} an hour, as given; traffic and electricity only where "
            "priced",
            own_machine,
        )
    if options.instance is None:
        return Account(None, "no price was given (--usd_per_hour or --instance)", own_machine)
    from deploy.price import Offer
    from deploy.pricing import open_prices

    prices = open_prices(live=not options.no_live)
    price, transfer = (
        prices.quote(Offer(options.instance, options.region)).price,
        prices.transfer(options.region),
    )
    rates = Rates(
        price.usd_per_hour,
        usd_per_kwh=options.usd_per_kwh,
        usd_per_gb_to_target=transfer.usd_per_gb_in,
        usd_per_gb_from_target=transfer.usd_per_gb_out,
    )
    return Account(rates, str(price), own_machine)
