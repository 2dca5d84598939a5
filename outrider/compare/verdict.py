"""The comparison in words: which architecture for which user, when distributing does not pay,
how far predictions were off. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from outrider.compare.arms import ARCHITECTURES, BASELINE, FUSED, LOCAL
from outrider.compare.closed_forms import (
    break_even_round_trip,
    capacity_over_alone,
    least_time,
)
from outrider.compare.measure import Comparison, network
from outrider.compare.options import CompareOptions
from outrider.compare.prediction import Costs
from outrider.compare.rows import Row

CROSSING = tuple(architecture.name for architecture in ARCHITECTURES if architecture.crosses)
HERE = tuple(architecture.name for architecture in ARCHITECTURES if architecture.drafts_here)
FEWEST = 6
"""Texts from which a difference is claimed: all of fewer lie on one side of a true median too
often (2 in 2**5 cases).
"""


def verdict(options: CompareOptions, comparison: Comparison) -> list[str]:
    """A sentence or two each."""
    if not comparison.has_baseline:
        return [
            "No speed-up is given and none is to be read out of these rows: target-only was not "
            "run.",
            *_errors(comparison.rows),
        ]
    words = [
        _at(rtt, [row for row in comparison.rows if row.rtt_ms == rtt])
        for rtt in dict.fromkeys(row.rtt_ms for row in comparison.rows)
    ]
    words += _who(comparison.rows)
    words += _window(comparison)
    words += _bound(options, comparison)
    words += _capacity(comparison)
    return [*words, *_errors(comparison.rows)]


def _at(rtt: float, rows: Sequence[Row]) -> str:
    """What was measured at one round trip."""
    fastest = max(rows, key=lambda row: row.tokens_per_second.median)
    said = [f"{_name(row)} {_against(row)}" for row in rows if row.architecture != BASELINE]
    return (
        f"At {rtt:g} ms of added round trip, {_name(fastest)} was fastest "
        f"({fastest.tokens_per_second.median:.1f} tokens/s): {'; '.join(said)}."
    )


def _against(row: Row) -> str:
    """In words that say no more than the interval does."""
    assert row.ratio is not None
    figures = (
        f"{row.ratio.median:.2f} times target-only ({row.ratio.low:.2f} to {row.ratio.high:.2f})"
    )
    if row.texts < FEWEST:
        return f"{figures} in {row.texts} texts, too few to tell"
    if _is_faster(row):
        return f"was faster, {figures}"
    return f"was slower, {figures}" if row.ratio.high < 1 else f"could not be told apart, {figures}"


def _is_faster(row: Row) -> bool:
    """Than target-only, beyond the interval of enough texts."""
    return row.ratio is not None and row.texts >= FEWEST and row.ratio.low > 1


def _who(rows: Sequence[Row]) -> list[str]:
    """Advice to users, by what was measured."""
    words = []
    paid, not_paid = _paid(rows)
    fused = [row for row in rows if row.architecture == FUSED]
    if fused:
        beaten = [
            row.rtt_ms
            for row in fused
            if _best(rows, row.rtt_ms, HERE) > row.tokens_per_second.median
        ]
        where = f"except at {_list(beaten)} ms" if beaten else "at every round trip measured"
        words.append(
            f"A user whose target's host can draft, too, is served best by fused, {where}; "
            "drafting here then saves the host, not time."
        )
    if paid:
        words.append(
            f"A user of a target that only verifies gains by drafting here at {_list(paid)} ms."
        )
    if not_paid:
        words.append(
            "Drafting here did not pay, or could not be told from target-only, at "
            f"{_list(not_paid)} ms: such a user streams target-only."
        )
    if any(row.architecture == LOCAL for row in rows):
        local = next(row for row in rows if row.architecture == LOCAL)
        words.append(
            "A user whose machine holds the target needs nobody: "
            f"{local.tokens_per_second.median:.1f} tokens/s there, alone."
        )
    return words


def _paid(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Round trips at which the best arm that drafts here was faster than target-only beyond its
    interval, and the others.
    """
    paid: list[float] = []
    not_paid: list[float] = []
    for rtt in dict.fromkeys(row.rtt_ms for row in rows):
        across = [row for row in rows if row.rtt_ms == rtt and row.architecture in HERE]
        if across:
            (paid if any(map(_is_faster, across)) else not_paid).append(rtt)
    return paid, not_paid


def _best(rows: Sequence[Row], rtt: float, names: Sequence[str]) -> float:
    return max(
        (
            row.tokens_per_second.median
            for row in rows
            if row.rtt_ms == rtt and row.architecture in names
        ),
        default=0.0,
    )


def _window(comparison: Comparison) -> list[str]:
    """The break-even of the best synchronous setting, from the rounds that were measured."""
    ends = []
    for (rtt, name), costs in comparison.measured.items():
        alone = comparison.measured.get((rtt, BASELINE))
        if name in CROSSING and alone is not None:
            ends.append(
                break_even_round_trip(_time_alone(alone), costs.made, costs.host + costs.queue)
            )
    if not ends:
        return []
    if max(ends) <= 0:
        return [
            "By the rounds measured here waiting for them pays at no round trip, not on loopback: "
            "the target is too fast for this draft."
        ]
    return [
        f"By the rounds measured here waiting for them pays below {max(ends) * 1e3:.0f} ms of "
        "added round trip, for one user and these settings."
    ]


def _bound(options: CompareOptions, comparison: Comparison) -> list[str]:
    """What no lossless split can beat, at the longest round trip."""
    passes = [
        costs.made.verify for (_, name), costs in comparison.measured.items() if name in CROSSING
    ]
    if comparison.coverage is None or not passes:
        return []
    longest, miss = max(options.rtt), 1 - comparison.coverage
    if miss == 0:
        return []
    least = least_time(miss, network(options, longest / 1e3).round_trip, min(passes)) * 1e3
    guesses = f"these guesses (a miss at {miss:.0%} of positions)"
    return [
        f"At {longest:g} ms no lossless draft across the link with {guesses} takes less than "
        f"{least:.1f} ms a token."
    ]


def _capacity(comparison: Comparison) -> list[str]:
    """What rounds are for where they save no time."""
    first = min((rtt for rtt, _ in comparison.measured), default=0.0)
    alone = comparison.measured.get((first, BASELINE))
    words = []
    across = [
        costs
        for (rtt, name), costs in comparison.measured.items()
        if rtt == first and name in CROSSING and costs.made.verify > 0
    ]
    if alone is not None and across:
        gain = max(
            capacity_over_alone(costs.made.tokens, alone.made.verify, costs.made.verify)
            for costs in across
        )
        words.append(
            f"Computed for a saturated target: {gain:.1f} times as many clients in synchronous "
            "rounds as in target-only, if passes of many sessions keep the proportion that passes "
            "of one have here."
        )
    return words


def _errors(rows: Sequence[Row]) -> list[str]:
    errors = [abs(row.error) for row in rows if row.error is not None]
    if not errors:
        return ["No prediction was made: the texts of the sweep were too short."]
    return [
        f"Predictions of the time per token were off by {median(errors):.0%} (median of "
        f"{len(errors)} cells), at worst {max(errors):.0%}."
    ]


def _time_alone(costs: Costs) -> float:
    return (costs.made.verify + costs.host + costs.queue) / costs.made.tokens


def _name(row: Row) -> str:
    return f"{row.architecture} ({row.setting})" if row.setting else row.architecture


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
