"""What texts take besides time: joules of this machine and peak memory, read while one is made, and
the dollars and joules that an arm's texts are charged by the accounting of inference/cost.

A figure that nobody can know here is unavailable, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inference.cost.effort import Effort
from inference.cost.energy import EnergyMeter, EnergyReader
from inference.cost.objective import PER_MILLION, Terms
from inference.cost.quantity import Figure
from outrider.compare.arms import Architecture
from outrider.money.goals import Stated, terms_of
from outrider.options.groups import PriceOptions
from outrider.text.completion import Completion, Request


@dataclass(frozen=True)
class Reading:
    """One text and what it took to make it."""

    done: Completion
    joules: Figure  # read on this machine
    memory_here: int | None  # bytes resident at the peak; None where it cannot be read
    memory_target: int | None


@dataclass(frozen=True)
class Meters:
    """The instruments: this machine's energy readers, and the process of a target that was started
    here.
    """

    readers: Sequence[EnergyReader]
    target_pid: int | None

    def read(self, complete: Callable[[Request], Completion], request: Request) -> Reading:
        """Make the text and read the meters."""
        reset_peak("self")
        if self.target_pid is not None:
            reset_peak(self.target_pid)
        with EnergyMeter(self.readers) as meter:
            done = complete(request)
        target = None if self.target_pid is None else peak_memory(self.target_pid)
        return Reading(done, meter.known, peak_memory("self"), target)


def reset_peak(pid: int | str) -> None:
    """Reset a process's peak memory to its present memory. Where that is not possible, peaks are of
    its whole life.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # 5 resets the peak: proc(5)
    except OSError:
        return


def peak_memory(pid: int | str) -> int | None:
    """Peak resident bytes; None where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if kibibytes is None else int(kibibytes) * 1024


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
        drafting = read if not self.whole and read.value is not None else None
        return self.terms.bill(tokens, effort, drafting).known_cost.times(PER_MILLION)

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
        both = self.terms.bill(
            tokens, effort, read if read.value is not None else None
        ).energy_total
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
