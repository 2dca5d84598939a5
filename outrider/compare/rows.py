"""A row of the comparison: what one arm did at one round trip, summed up from its texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from inference.cost.objective import PER_MILLION
from inference.cost.quantity import Figure
from outrider.compare.arms import Arm
from outrider.compare.divergence import Difference
from outrider.compare.intervals import (
    FEWEST,
    FigureInterval,
    Interval,
    Percentiles,
    bootstrap_median,
    median_figure,
    pareto,
    percentiles,
)
from outrider.compare.readings import Account, Reading
from outrider.text.completion import Completion

_COUNTS = (
    "forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens", "draft_calls",
    "bytes_up", "bytes_down", "messages_up", "messages_down", "draft_seconds", "queue_seconds",
    "target_seconds", "prefill_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class ResultRow:
    """What one arm did at one round trip. Counts and seconds are sums over texts, medians are over
    texts.
    """

    arm: Arm
    rtt_ms: float
    texts: int
    tokens: int
    tokens_per_second: Interval
    # tokens per second relative to target-only, text by text; None without target-only runs
    ratio: Interval | None
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None  # for each text, after its first chunk
    inter_chunk: Percentiles | None  # between tokens that came together and the next ones
    forwards: int
    lone_forwards: int  # without candidates
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_length: float  # tokens a forward
    acceptance_length_drafted: float  # tokens a forward with candidates
    acceptance: float | None  # chance that the next token is among the candidates for it
    acceptance_by_position: list[float]  # share of forwards that accepted depth 1, 2, ...
    draft_calls: int
    draft_seconds: float
    rest_seconds: float  # neither computed nor in line: network, programs, waiting for drafts
    queue_seconds: float
    target_seconds: float
    prefill_seconds: float
    bytes_up: int
    bytes_down: int
    messages_up: int
    messages_down: int
    usd_per_million: FigureInterval  # the target is held from request to last token
    usd_per_million_by_forwards: FigureInterval  # the target's forwards alone are paid
    joules_per_million: FigureInterval  # draft and target together
    joules_here_per_million: FigureInterval  # read on this machine, idle power included
    memory_here: int | None
    memory_target: int | None
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


def summarise(
    arm: Arm,
    rtt_ms: float,
    readings: Sequence[Reading],
    baseline: Sequence[Reading] | None,
    account: Account,
    differences: Sequence[Difference],
) -> ResultRow:
    """The row of one arm's readings.

    baseline: target-only readings of the same requests in the same order
    differences: where texts are not equal
    """
    done = [reading.done for reading in readings]
    sums = {name: sum(getattr(text, name) for text in done) for name in _COUNTS}
    forwards, tokens = sums["forwards"], sum(len(text.token_ids) for text in done)
    drafted, accepted = forwards - sums["lone_forwards"], sums["num_accepted_tokens"]
    there = sum(sums[name] for name in ("queue_seconds", "target_seconds", "prefill_seconds"))
    each = [seconds_per_token([text]) for text in done]
    pairs = zip(done, baseline or [], strict=baseline is not None)
    ratios = [ours.tokens_per_second / alone.done.tokens_per_second for ours, alone in pairs]
    at_depth = zip_longest(*(text.accepted_at_depth for text in done), fillvalue=0)
    usd, usd_by_forwards, joules, joules_here = _charged(readings, account.of(arm.architecture))
    return ResultRow(
        arm=arm,
        rtt_ms=rtt_ms,
        texts=len(done),
        tokens=tokens,
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
        memory_here=_most([reading.memory_here for reading in readings]),
        memory_target=_most([reading.memory_target for reading in readings]),
        identical_texts=None if baseline is None else len(done) - len(differences),
        differences=list(differences),
        seconds_per_token=seconds_per_token(done),
        device=done[0].device,
        usd_per_million=usd,
        usd_per_million_by_forwards=usd_by_forwards,
        joules_per_million=joules,
        joules_here_per_million=joules_here,
        **sums,
    )


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
    deepest = max((len(done.accepted_at_depth) for done in texts), default=0)
    whole = sum(
        done.accepted_at_depth[-1]
        for done in texts
        if deepest and len(done.accepted_at_depth) == deepest
    )
    missed = sum(done.forwards - done.lone_forwards for done in texts) - whole
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
                account.usd_per_million(tokens, done.effort, read),
                account.usd_per_million(tokens, done.effort_of_forwards, read),
                account.joules_per_million(tokens, done.effort, read),
                read.times(PER_MILLION / tokens),
            )
        )
    return [median_figure(each) for each in zip(*figures, strict=True)]


def _most(sizes: Sequence[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)
