"""A point of the curve: what one position of the knob brought and cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from inference.cost.accounting import Rates, bill
from inference.cost.objective import PER_MILLION, Effort, Terms
from inference.cost.quantity import Figure, total
from outrider.comparison.prediction import decoding
from outrider.comparison.spread import Interval, bootstrap_median
from outrider.completion import Completion


class Sample(NamedTuple):
    """One text. joules: of this machine while it was made."""

    done: Completion
    joules: Figure


class Spread(NamedTuple):
    """A median over texts with its bootstrap interval; unavailable, with the reasons, where it
    is for one of them.
    """

    median: Figure
    low: float | None
    high: float | None

    def record(self) -> dict[str, object]:
        """As plain data for JSON."""
        return {**self.median.record(), "low": self.low, "high": self.high}


def spread(figures: Sequence[Figure]) -> Spread:
    """Of the same quantity, a text each."""
    known = total(figures)
    if known.value is None:
        return Spread(known, None, None)
    interval = bootstrap_median([figure.value for figure in figures if figure.value is not None])
    return Spread(replace(known, value=interval.median), interval.low, interval.high)


@dataclass(frozen=True)
class Ledger:
    """How texts are charged. rates: None where no price was given.  whole: what is read on this
    machine is all that there is of joules, draft and target together; else it is the draft's part.
    untold: why what is read here says nothing; None where it does.
    """

    rates: Rates | None
    target_share: float
    draft_watts: float | None
    target_watts: float | None
    whole: bool
    untold: str | None = None

    def usd_per_million(self, tokens: float, effort: Effort) -> Figure:
        """A lower bound, which its source says, where a part is not known."""
        if self.rates is None:
            return Figure.unavailable("no price was given (--usd_per_hour or --instance)")
        return bill(self._terms.usage(tokens, effort), self.rates).known_cost.times(PER_MILLION)

    def joules_per_million(self, tokens: float, effort: Effort, read: Figure) -> Figure:
        """Of draft and target: as read where that can be, else by the watts that were stated;
        never the one without the other.
        """
        if self.untold is not None:
            read = Figure.unavailable(self.untold)
        if self.whole and read.value is not None:
            return read.times(PER_MILLION / tokens)
        usage = self._terms.usage(tokens, effort)
        if not self.whole and read.value is not None:
            usage = replace(usage, draft_joules=read)
        stated = bill(usage, self._terms.rates).energy_total
        known = stated.value is not None or read.value is not None
        return (stated if known else Figure.unavailable(f"{read.source}; {stated.source}")).times(
            PER_MILLION
        )

    @property
    def _terms(self) -> Terms:
        return Terms(
            self.rates or Rates(0.0), self.target_share, self.draft_watts, self.target_watts
        )


@dataclass(frozen=True)
class Point:
    """cs: 0 is speed alone, 100 cost alone.  tokens_per_second and the rest: of whole texts.
    after_first_chunk: tokens a second from each text's first chunk on; None where all came at once.
    draft_calls, forwards, bytes_up: a token.  identical_texts: to those of the first point.
    efficient: no other point is as good in everything and better in something.
    """

    cs: float
    texts: int
    tokens: int
    tokens_per_second: Interval
    usd_per_million: Spread
    joules_per_million: Spread
    after_first_chunk: float | None
    draft_calls: float
    forwards: float
    bytes_up: float
    identical_texts: int
    efficient: bool = False

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, int | float) or value is None
        }
        return {
            **plain,
            "tokens_per_second": self.tokens_per_second._asdict(),
            "usd_per_million": self.usd_per_million.record(),
            "joules_per_million": self.joules_per_million.record(),
        }


def summarise(
    cs: float, samples: Sequence[Sample], first: Sequence[Sample], ledger: Ledger
) -> Point:
    """A point from its texts. first: the texts of the first point, in the same order."""
    texts = [sample.done for sample in samples]
    tokens = sum(len(done.token_ids) for done in texts)
    after_first = decoding(texts).seconds_per_token
    return Point(
        cs=cs,
        texts=len(texts),
        tokens=tokens,
        tokens_per_second=bootstrap_median([done.tokens_per_second for done in texts]),
        usd_per_million=spread(
            [ledger.usd_per_million(len(done.token_ids), done.effort) for done in texts]
        ),
        joules_per_million=spread(
            [
                ledger.joules_per_million(len(one.done.token_ids), one.done.effort, one.joules)
                for one in samples
            ]
        ),
        after_first_chunk=1 / after_first if after_first else None,
        draft_calls=sum(done.draft_calls for done in texts) / tokens,
        forwards=sum(done.forwards for done in texts) / tokens,
        bytes_up=sum(done.bytes_up for done in texts) / tokens,
        identical_texts=sum(
            ours.done.token_ids == theirs.done.token_ids
            for ours, theirs in zip(samples, first, strict=True)
        ),
    )


def marked(points: Sequence[Point]) -> list[Point]:
    """The same, the efficient ones marked: among speed and what is known of every point."""
    costs = [[-point.tokens_per_second.median] for point in points]
    for axis in (
        [point.usd_per_million for point in points],
        [point.joules_per_million for point in points],
    ):
        values = [one.median.value for one in axis]
        if None not in values:
            for cost, value in zip(costs, values, strict=True):
                cost.append(value or 0.0)
    return [replace(point, efficient=one) for point, one in zip(points, pareto(costs), strict=True)]


def pareto(costs: Sequence[Sequence[float]]) -> list[bool]:
    """Which of these no other one dominates: is nowhere worse (greater) and somewhere better."""
    return [not any(_dominates(other, one) for other in costs) for one in costs]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(mine <= theirs for mine, theirs in pairs) and any(
        mine < theirs for mine, theirs in pairs
    )
