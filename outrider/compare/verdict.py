"""The comparison in words: three lines at most about what was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.compare.arms import BASELINE, FUSED, HYBRID
from outrider.compare.measure import Comparison
from outrider.compare.rows import ResultRow


def verdict(comparison: Comparison) -> list[str]:
    """The verdict, in three lines at most. It claims nothing within an interval."""
    if not comparison.has_baseline:
        return ["No speed-up is given: target-only was not run."]
    trips = comparison.options.rtt
    lines = [
        "; ".join(_leader_words(trip, comparison.at(trip)) for trip in trips) + ".",
        " ".join(filter(None, (_advice(comparison), _instead(comparison)))),
        _cheapest(comparison) if comparison.options.cs else "",
    ]
    return [line for line in lines if line]


def leader(rows: Sequence[ResultRow]) -> ResultRow | None:
    """The fastest row at one round trip: an arm that is faster than target-only, or target-only
    where every other arm is slower. None where neither can be told.
    """
    faster = [row for row in rows if row.faster]
    if faster:
        return max(faster, key=lambda row: row.tokens_per_second.median)
    alone = next((row for row in rows if row.arm.architecture.name == BASELINE), None)
    return alone if all(row.slower for row in rows if row is not alone) else None


def _leader_words(rtt: float, rows: Sequence[ResultRow]) -> str:
    first = leader(rows)
    if first is None:
        others = [row for row in rows if row.arm.architecture.name != BASELINE]
        best = max(others, key=lambda row: row.ratio or (0.0,))
        return (
            f"{rtt:g} ms: nothing can be told from target-only (best: {best.arm.name} {_x(best)})"
        )
    against = f", {_x(first)}" if first.arm.architecture.name != BASELINE else ""
    speed = f"{first.tokens_per_second.median:.1f} tokens/s"
    return f"{rtt:g} ms: {first.arm.name} is fastest{against} ({speed})"


def _x(row: ResultRow) -> str:
    """The ratio to target-only with its interval."""
    assert row.ratio is not None
    return f"{row.ratio.median:.2f}x target-only [{row.ratio.low:.2f}, {row.ratio.high:.2f}]"


def _advice(comparison: Comparison) -> str:
    """At which round trips drafting here, or beside the target, is faster than target-only."""
    here = [row for row in comparison.rows if row.arm.architecture.drafts_here]
    beside = [row for row in comparison.rows if row.arm.architecture.name == FUSED]
    places = {"on this machine": here, "beside the target": beside}
    said = [f"{where} {_outcomes(rows)}" for where, rows in places.items() if rows]
    return f"Drafting {'; '.join(said)}." if said else ""


def _instead(comparison: Comparison) -> str:
    """What is faster where hybrid, which is what `outrider run` does, did not pay."""
    ways = dict[str, list[str]]()
    for row in comparison.rows:
        first = leader(comparison.at(row.rtt_ms))
        if row.arm.architecture.name == HYBRID and not row.faster and first is not None:
            ways.setdefault(first.arm.architecture.command, []).append(f"{row.rtt_ms:g} ms")
    if not ways:
        return ""
    said = "; ".join(f"{command} at {', '.join(trips)}" for command, trips in ways.items())
    shared = not (comparison.options.target_host or comparison.options.emulate)
    elsewhere = " For a target elsewhere give --emulate PROFILE or --target_host HOST:PORT."
    return f"hybrid is what `outrider run` does; faster here: {said}." + elsewhere * shared


def _outcomes(rows: Sequence[ResultRow]) -> str:
    """Outcomes at each round trip, by the best of these rows."""
    trips: dict[str, list[str]] = {}
    for trip in dict.fromkeys(row.rtt_ms for row in rows):
        there = [row for row in rows if row.rtt_ms == trip]
        outcome = "cannot be told from target-only"
        if any(row.faster for row in there):
            outcome = "pays"
        elif all(row.slower for row in there):
            outcome = "is slower than target-only"
        trips.setdefault(outcome, []).append(f"{trip:g}")
    return ", ".join(f"{outcome} at {', '.join(where)} ms" for outcome, where in trips.items())


def _cheapest(comparison: Comparison) -> str:
    """The cheapest position of the knob at the first round trip, in the first unit that is known of
    all.
    """
    rows = [
        row for row in comparison.at(comparison.options.rtt[0]) if row.arm.setting.knob is not None
    ]
    for name, unit in (("usd_per_million", "$"), ("joules_per_million", "J")):
        costs = [(getattr(row, name), row.arm.name) for row in rows]
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
