"""Rows of the comparison: texts with joules read while they are made, their charges, and the sum of
one arm's texts at one round trip.

A figure that nobody can know here is unavailable, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from inference.cost.billing import PER_MILLION, Billing
from inference.cost.energy import EnergyMeter, EnergyReader
from inference.cost.quantity import Figure
from inference.planner.prices import Usage
from outrider.measure.arms import Architecture, Arm
from outrider.measure.statistics import (
    FEWEST,
    FigureInterval,
    Interval,
    Percentiles,
    bootstrap_median,
    median_figure,
    pareto,
    percentiles,
)
from outrider.text.completion import Completion, Request

_COUNTS = (
    "forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens", "draft_calls",
    "bytes_up", "bytes_down", "messages_up", "messages_down", "draft_seconds", "queue_seconds",
    "target_seconds", "prefill_seconds",
)  # fmt: skip
"""Counts and seconds of a text's record that are added up over texts."""


class Difference(NamedTuple):
    """The first token at which a text is not the target-only one."""

    prompt: int
    at: int
    ours: int | None  # None: the text ended there
    theirs: int | None


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position at which two texts differ; None where they are equal."""
    pairs = enumerate(zip_longest(ours, theirs))
    return next((index for index, (mine, other) in pairs if mine != other), None)


class Reading(NamedTuple):
    """One text, with the joules of this machine while it was made."""

    done: Completion
    joules: Figure


def read_meters(
    readers: Sequence[EnergyReader], complete: Callable[[Request], Completion], request: Request
) -> Reading:
    """Make the text and read this machine's energy meanwhile."""
    with EnergyMeter(readers) as meter:
        done = complete(request)
    return Reading(done, meter.known)


UNPRICED = "no price was given (--usd_per_hour or --instance)"


@dataclass(frozen=True)
class Account:
    """Charges for texts. One user holds the target from request to last token."""

    billing: Billing
    whole: bool  # joules that are read here are those of draft and target together
    emulated: bool = False  # the target's times are not this machine's, so neither are its joules

    def of(self, architecture: Architecture) -> Account:
        """The account of an architecture. Nothing is rented where its target runs on the user's own
        machine.
        """
        if not architecture.on_this_machine:
            return self
        source = "the user's own machine: nothing is rented"
        return Account(replace(self.billing, target_usd_per_hour=None, source=source), whole=True)

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


@dataclass(frozen=True)
class ResultRow:
    """Results of one arm at one round trip. Medians are over texts."""

    arm: Arm
    rtt_ms: float
    texts: int
    tokens: int
    sums: Mapping[str, float]  # over texts: counts, and seconds
    tokens_per_second: Interval
    # tokens per second relative to target-only, text by text; None without target-only runs
    ratio: Interval | None
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None  # for each text, after its first chunk
    inter_chunk: Percentiles | None  # between tokens that came together and the next ones
    acceptance_length: float  # tokens a forward
    acceptance_length_drafted: float  # tokens a forward with candidates
    acceptance: float | None  # chance that the next token is among the candidates for it
    acceptance_by_position: list[float]  # share of forwards that accepted depth 1, 2, ...
    rest_seconds: float  # neither computed nor in line: network, programs, waiting for drafts
    usd_per_million: FigureInterval  # the target is held from request to last token
    usd_per_million_by_forwards: FigureInterval  # the target's forwards alone are paid
    joules_per_million: FigureInterval  # draft and target together
    joules_here_per_million: FigureInterval  # read on this machine, idle power included
    identical_texts: int | None  # equal to target-only; None without target-only runs
    differences: list[Difference]
    seconds_per_token: float | None  # over all texts, after their first chunks
    device: str  # the target's, in its own words: an emulated one says so
    pareto: bool = False  # no row at this round trip is nowhere worse and somewhere better

    @property
    def faster(self) -> bool:
        """Whether it is faster than target-only, beyond the interval and with enough texts."""
        return self.ratio is not None and self.texts >= FEWEST and self.ratio.low > 1

    @property
    def slower(self) -> bool:
        return self.ratio is not None and self.texts >= FEWEST and self.ratio.high < 1

    def record(self) -> dict[str, Any]:
        """The row as plain data for JSON."""
        fields = dict(vars(self))
        arm, sums, differences = (fields.pop(name) for name in ("arm", "sums", "differences"))
        return {
            **arm.record(),
            **sums,
            **{name: _plain(value) for name, value in fields.items()},
            "differences": [one._asdict() for one in differences],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, FigureInterval):
        return value.record()
    return value._asdict() if isinstance(value, Interval | Percentiles) else value


def summarise(
    arm: Arm,
    rtt_ms: float,
    readings: Sequence[Reading],
    baseline: Sequence[Reading] | None,
    account: Account,
) -> ResultRow:
    """The row of one arm's readings.

    baseline: target-only readings of the same requests in the same order
    """
    done = [reading.done for reading in readings]
    records = [text.record() for text in done]
    sums = {name: sum(record[name] for record in records) for name in _COUNTS}
    forwards, tokens = sums["forwards"], sum(len(text.token_ids) for text in done)
    drafted, accepted = forwards - sums["lone_forwards"], sums["num_accepted_tokens"]
    there = sum(sums[name] for name in ("queue_seconds", "target_seconds", "prefill_seconds"))
    each = [seconds_per_token([text]) for text in done]
    pairs = zip(done, baseline or [], strict=baseline is not None)
    ratios = [ours.tokens_per_second / alone.done.tokens_per_second for ours, alone in pairs]
    at_depth = zip_longest(*(text.accepted.accepted_at_depth for text in done), fillvalue=0)
    usd, usd_by_forwards, joules, joules_here = _charged(readings, account.of(arm.architecture))
    differences = list(_differences(done, baseline or []))
    return ResultRow(
        arm=arm,
        rtt_ms=rtt_ms,
        texts=len(done),
        tokens=tokens,
        sums=sums,
        tokens_per_second=bootstrap_median([text.tokens_per_second for text in done]),
        ratio=None if baseline is None else bootstrap_median(ratios),
        time_to_first_token=percentiles([text.time_to_first_token for text in done]),
        time_per_output_token=percentiles([seconds for seconds in each if seconds is not None]),
        inter_chunk=percentiles([b - a for text in done for a, b in pairwise(text.arrivals)]),
        acceptance_length=tokens / forwards if forwards else 0.0,
        acceptance_length_drafted=1 + accepted / drafted if drafted else 0.0,
        acceptance=acceptance(done) if drafted else None,
        acceptance_by_position=[sum(at) / forwards for at in at_depth],
        rest_seconds=max(0.0, sum(text.seconds for text in done) - there),
        identical_texts=None if baseline is None else len(done) - len(differences),
        differences=differences,
        seconds_per_token=seconds_per_token(done),
        device=done[0].device,
        usd_per_million=usd,
        usd_per_million_by_forwards=usd_by_forwards,
        joules_per_million=joules,
        joules_here_per_million=joules_here,
    )


def _differences(texts: Sequence[Completion], alone: Sequence[Reading]) -> Iterator[Difference]:
    """First differences of texts and the target-only ones."""
    for ours, (theirs, _) in zip(texts, alone, strict=False):
        mine, other = ours.token_ids, theirs.token_ids
        at = first_difference(mine, other)
        if at is not None:
            taken, own = (tokens[at] if at < len(tokens) else None for tokens in (mine, other))
            yield Difference(ours.index, at, taken, own)


def marked(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """These rows with the Pareto set marked, at each round trip.

    Rows are compared by speed and by those costs that are known of all. Rows with too few texts, or
    whose target is not rented, are left out.
    """
    found = list(rows)
    told = [row for row in rows if row.texts >= FEWEST and not row.arm.architecture.on_this_machine]
    for trip in {row.rtt_ms for row in told}:
        places = [rows.index(row) for row in told if row.rtt_ms == trip]
        costs = [[-rows[index].tokens_per_second.median] for index in places]
        for name in ("usd_per_million", "joules_per_million"):
            values = [getattr(rows[index], name).median.value for index in places]
            if None not in values:
                costs = [[*cost, value] for cost, value in zip(costs, values, strict=True)]
        for index, best in zip(places, pareto(costs), strict=True):
            found[index] = replace(rows[index], pareto=best)
    return found


def seconds_per_token(texts: Sequence[Completion]) -> float | None:
    """Seconds a token over these texts after their first chunks, without prefill and the opening of
    sessions; None where no text has more than one chunk.
    """
    begun = [done for done in texts if done.arrivals]
    tokens = sum(sum(done.chunk_tokens[1:]) for done in begun)
    return sum(done.arrivals[-1] - done.arrivals[0] for done in begun) / tokens if tokens else None


def acceptance(texts: Sequence[Completion]) -> float:
    """Chance that the target's next token is among the guesses for its position, if there are any.

    A round whose path is as long as the longest of all is counted as without a miss. Forwards
    without candidates have nothing to miss.
    """
    accepted = sum(done.num_accepted_tokens for done in texts)
    at_depth = [done.accepted.accepted_at_depth for done in texts]
    deepest = max(map(len, at_depth), default=0)
    whole = sum(depths[-1] for depths in at_depth if deepest and len(depths) == deepest)
    missed = sum(done.traffic.forwards - done.traffic.lone for done in texts) - whole
    return accepted / (accepted + missed) if accepted + missed else 0.0


def _charged(readings: Sequence[Reading], account: Account) -> list[FigureInterval]:
    """US dollars with the target held, and by forwards; joules of both machines, and of this
    one.
    """
    figures: list[tuple[Figure, ...]] = []
    for reading in readings:
        done, read = reading.done, reading.joules
        tokens = len(done.token_ids)
        figures.append(
            (
                account.usd_per_million(tokens, done.usage, read),
                account.usd_per_million(tokens, done.usage_of_forwards, read),
                account.joules_per_million(tokens, done.usage, read),
                read.times(PER_MILLION / tokens),
            )
        )
    return [median_figure(each) for each in zip(*figures, strict=True)]
