"""A point of the curve: what one position of the knob brought and cost, beside what was predicted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from inference.cost import Rates, bill
from inference.figures import Figure, total
from inference.forecast import Forecast
from inference.objective import PER_MILLION, Effort, Terms
from outrider.comparison.prediction import decoding
from outrider.comparison.spread import Interval, bootstrap_median
from outrider.completion import Completion


class Sample(NamedTuple):
    """One text. joules: of this machine while it was made.  expected: the forecast that it began with."""

    done: Completion
    joules: Figure
    expected: Forecast


class Spread(NamedTuple):
    """A median over texts with its bootstrap interval; unavailable, with the reasons, where it is for one of them."""

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
    """How texts are charged. rates: None where no price was given.  whole: what is read on this machine is all that there is of joules,
    draft and target together; else it is the draft's part.  untold: why what is read here says nothing; None where it does.
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
        """Of draft and target: as read where that can be, else by the watts that were stated; never the one without the other."""
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
class Predicted:
    """By the forecasts that the texts began with, whose efforts are averaged: of the rounds, without opening and prefill."""

    tokens_per_second: float
    usd_per_million: Figure
    joules_per_million: Figure

    def record(self) -> dict[str, object]:
        """As plain data for JSON."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "usd_per_million": self.usd_per_million.record(),
            "joules_per_million": self.joules_per_million.record(),
        }


@dataclass(frozen=True)
class Point:
    """cs: 0 is speed alone, 100 cost alone.  tokens_per_second and the rest: of whole texts.  after_first_chunk: tokens a second from
    each text's first chunk on, which is what `predicted` predicts; None where all came at once.  settings: that were decided on when texts began.
    identical_texts: to those of the first point.  efficient: no other point is as good in everything and better in something.
    """

    cs: float
    settings: tuple[str, ...]
    texts: int
    tokens: int
    tokens_per_second: Interval
    usd_per_million: Spread
    joules_per_million: Spread
    after_first_chunk: float | None
    predicted: Predicted
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
            "settings": list(self.settings),
            "tokens_per_second": self.tokens_per_second._asdict(),
            "usd_per_million": self.usd_per_million.record(),
            "joules_per_million": self.joules_per_million.record(),
            "predicted": self.predicted.record(),
        }


def summarise(
    cs: float, samples: Sequence[Sample], first: Sequence[Sample], ledger: Ledger
) -> Point:
    """A point from its texts. first: the texts of the first point, in the same order."""
    texts = [sample.done for sample in samples]
    rounds = decoding(texts).seconds_per_token
    return Point(
        cs=cs,
        settings=tuple(
            words for words, _ in Counter(sample.expected.words for sample in samples).most_common()
        ),
        texts=len(texts),
        tokens=sum(len(done.token_ids) for done in texts),
        tokens_per_second=bootstrap_median([done.tokens_per_second for done in texts]),
        usd_per_million=spread(
            [ledger.usd_per_million(len(done.token_ids), effort_of(done)) for done in texts]
        ),
        joules_per_million=spread(
            [
                ledger.joules_per_million(len(one.done.token_ids), effort_of(one.done), one.joules)
                for one in samples
            ]
        ),
        after_first_chunk=1 / rounds if rounds else None,
        predicted=_predicted([sample.expected for sample in samples], ledger),
        identical_texts=sum(
            ours.done.token_ids == theirs.done.token_ids
            for ours, theirs in zip(samples, first, strict=True)
        ),
    )


def effort_of(done: Completion) -> Effort:
    """What a text took, all of it."""
    return Effort(
        done.seconds, done.draft_seconds + done.ahead_seconds, done.bytes_up, done.bytes_down
    )


def _predicted(expected: Sequence[Forecast], ledger: Ledger) -> Predicted:
    effort = Effort()
    for one in expected:
        effort = effort.plus(one.effort.times(1 / len(expected)))
    unread = Figure.unavailable("joules that can only be read are not predicted")
    return Predicted(
        1 / effort.wall,
        ledger.usd_per_million(1.0, effort),
        ledger.joules_per_million(1.0, effort, unread),
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
