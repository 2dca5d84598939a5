"""The comparison in words: three lines that say what was measured, and for report.md what follows
from the closed forms. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from outrider.compare.arms import BASELINE, FUSED, LOCAL
from outrider.compare.closed_forms import break_even_round_trip, capacity_over_alone, least_time
from outrider.compare.measure import Comparison, network
from outrider.compare.prediction import Costs
from outrider.compare.rows import Row
from outrider.compare.statistics import FEWEST


def verdict(comparison: Comparison) -> list[str]:
    """At most three lines. Nothing is claimed within an interval or from too few texts."""
    if not comparison.has_baseline:
        return ["No speed-up is given: target-only was not run."]
    if not comparison.tells:
        texts = min(row.texts for row in comparison.rows)
        return [
            f"Too few to tell: {texts} texts of each arm, and {FEWEST} are needed. Give more "
            "prompts or --num_runs."
        ]
    trips = comparison.options.rtt
    lines = [
        "; ".join(_leader_words(trip, comparison.at(trip)) for trip in trips) + ".",
        _advice(comparison),
        _cheapest(comparison) if comparison.options.cs else _break_even(comparison),
    ]
    return [line for line in lines if line]


def details(comparison: Comparison) -> list[str]:
    """What else follows, for report.md: nothing from too few texts but how far predictions were
    off.
    """
    words: list[str] = []
    if comparison.has_baseline and comparison.tells:
        words = [*_local(comparison.rows), *_bound(comparison), *_capacity(comparison)]
    return [*words, *_errors(comparison.rows)]


def leader(rows: Sequence[Row]) -> Row | None:
    """The fastest at one round trip: an arm that is faster than target-only, else target-only
    itself where every other arm is slower. None where neither can be told.
    """
    faster = [row for row in rows if row.faster]
    if faster:
        return max(faster, key=lambda row: row.tokens_per_second.median)
    alone = next((row for row in rows if row.arm.architecture.name == BASELINE), None)
    return alone if all(row.slower for row in rows if row is not alone) else None


def _leader_words(rtt: float, rows: Sequence[Row]) -> str:
    first, others = leader(rows), [row for row in rows if row.arm.architecture.name != BASELINE]
    if first is None:
        best = max(others, key=_ratio)
        return (
            f"{rtt:g} ms: nothing can be told from target-only (best: {best.arm.name} {_x(best)})"
        )
    if first not in others:
        return f"{rtt:g} ms: target-only is fastest ({first.tokens_per_second.median:.1f} tokens/s)"
    speed = f"{first.tokens_per_second.median:.1f} tokens/s"
    return f"{rtt:g} ms: {first.arm.name} is fastest, {_x(first)} ({speed})"


def _x(row: Row) -> str:
    """The ratio to target-only with its interval."""
    assert row.ratio is not None
    return f"{row.ratio.median:.2f}x target-only [{row.ratio.low:.2f}, {row.ratio.high:.2f}]"


def _ratio(row: Row) -> float:
    return row.ratio.median if row.ratio else 0.0


def _advice(comparison: Comparison) -> str:
    """Where drafting here, or beside the target, is faster than target-only."""
    here = [row for row in comparison.rows if row.arm.architecture.drafts_here]
    beside = [row for row in comparison.rows if row.arm.architecture.name == FUSED]
    said = [
        f"drafting {where} {', '.join(_outcomes(rows))}"
        for where, rows in (("on this machine", here), ("beside the target", beside))
        if rows
    ]
    words = "; ".join(said)
    return f"{words[:1].upper()}{words[1:]}." if said else ""


def _outcomes(rows: Sequence[Row]) -> Iterator[str]:
    """Of the best of these rows at each round trip."""
    trips: dict[str, list[str]] = {}
    for trip in dict.fromkeys(row.rtt_ms for row in rows):
        there = [row for row in rows if row.rtt_ms == trip]
        outcome = "cannot be told from target-only"
        if any(row.faster for row in there):
            outcome = "pays"
        elif all(row.slower for row in there):
            outcome = "is slower than target-only"
        trips.setdefault(outcome, []).append(f"{trip:g}")
    for outcome, where in trips.items():
        yield f"{outcome} at {', '.join(where)} ms"


def _break_even(comparison: Comparison) -> str:
    """The round trip up to which waiting for rounds pays by the closed forms, with what was
    measured here, unless the texts say otherwise.
    """
    crossing = [row for row in comparison.rows if row.arm.architecture.crosses]
    alone = {trip: _alone(comparison, trip) for trip in comparison.options.rtt}
    ends = [
        break_even_round_trip(_time_alone(known), row.costs.made, row.costs.host + row.costs.queue)
        for row in crossing
        if row.costs is not None and (known := alone[row.rtt_ms]) is not None
    ]
    if not ends:
        return ""
    end = max(ends) * 1e3
    words = f"Computed: synchronous rounds pay below {end:.0f} ms of added round trip"
    if end <= 0:
        words = "Computed: synchronous rounds pay at no round trip, the target is too fast for them"
    if any(_contradicts(comparison.at(trip), trip < end) for trip in comparison.options.rtt):
        return f"{words}; the texts say otherwise, so trust the first line."
    return f"{words}, for one user and these settings."


def _contradicts(rows: Sequence[Row], pays: bool) -> bool:
    """Whether rounds at this round trip were measured to do the contrary."""
    rounds = [row for row in rows if row.arm.architecture.crosses]
    if pays:
        return bool(rounds) and all(row.slower for row in rounds)
    return any(row.faster for row in rounds)


def _cheapest(comparison: Comparison) -> str:
    """The cheapest position of the knob, at the first round trip, in the first unit that is known
    of all.
    """
    rows = [
        row for row in comparison.at(comparison.options.rtt[0]) if row.arm.setting.knob is not None
    ]
    for name, unit in (("usd_per_million", "$"), ("joules_per_million", "J")):
        costs = [(getattr(row, name), row.arm.setting.label) for row in rows]
        if any(cost.median.value is None for cost, _ in costs):
            continue
        least, label = min(costs, key=lambda one: one[0].median.value)
        others = [cost for cost, other in costs if other != label]
        told = all(least.high < cost.low for cost in others)
        return (
            f"Cheapest: {label}, {unit}{least.median.value:.3g} a million tokens "
            f"[{least.low:.3g}, {least.high:.3g}]"
            + (", but it cannot be told from the others." * (not told) or ".")
        )
    return "Nothing is known of the cost: no price and no joules."


def _local(rows: Sequence[Row]) -> list[str]:
    return [
        "A user whose machine holds the target needs nobody: "
        f"{row.tokens_per_second.median:.1f} tokens/s there, alone."
        for row in rows[:]
        if row.arm.architecture.name == LOCAL
    ][:1]


def _bound(comparison: Comparison) -> list[str]:
    """What no synchronous rounds can beat, at the longest round trip."""
    crossing = [row for row in comparison.rows if row.arm.architecture.crosses]
    passes = [row.costs.made.verify for row in crossing if row.costs is not None]
    miss = 1 - max((row.acceptance or 0.0 for row in crossing), default=1.0)
    if miss == 0 or not passes:
        return []
    longest = max(comparison.options.rtt)
    link = network(comparison.options, longest / 1e3)
    return [
        f"At {longest:g} ms no synchronous rounds with these guesses (a miss at {miss:.0%} of "
        f"positions) take less than {least_time(miss, link.round_trip, min(passes)) * 1e3:.1f} ms "
        "a token."
    ]


def _capacity(comparison: Comparison) -> list[str]:
    """What rounds are for where they save no time."""
    first = comparison.options.rtt[0]
    alone = _alone(comparison, first)
    gains = [
        capacity_over_alone(row.costs.made.tokens, alone.made.verify, row.costs.made.verify)
        for row in comparison.at(first)
        if alone is not None
        and row.arm.architecture.crosses
        and row.costs is not None
        and row.costs.made.verify > 0
    ]
    if not gains:
        return []
    return [
        f"Computed for a saturated target: {max(gains):.1f} times as many clients in synchronous "
        "rounds as in target-only, if passes of many sessions keep the proportion that passes of "
        "one have here."
    ]


def _errors(rows: Sequence[Row]) -> list[str]:
    errors = [abs(row.error) for row in rows if row.error is not None]
    if not errors:
        return ["No prediction was made: the texts of the sweep were too short."]
    return [
        f"Predictions of the time per token were off by {median(errors):.0%} (median of "
        f"{len(errors)} cells), at worst {max(errors):.0%}."
    ]


def _alone(comparison: Comparison, rtt_ms: float) -> Costs | None:
    rows = comparison.at(rtt_ms)
    return next((row.costs for row in rows if row.arm.architecture.name == BASELINE), None)


def _time_alone(costs: Costs) -> float:
    return (costs.made.verify + costs.host + costs.queue) / costs.made.tokens
