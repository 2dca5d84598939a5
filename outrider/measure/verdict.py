"""The verdict of a comparison, in up to three lines. It claims no difference within the confidence
interval, or within that of target-only over itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.measure.arms import AGAIN, BASELINE, HYBRID, Choice
from outrider.measure.figures import Row


def verdict(rows: Sequence[Row], choices: Sequence[Choice]) -> list[str]:
    """The fastest over each link, what to run where the default is not faster, and the cheapest
    position of the knob.
    """
    if not any(row.arm == BASELINE for row in rows):
        return ["No speed-up is given: target-only was not run."]
    links = [[row for row in rows if row.rtt_ms == trip] for trip in _trips(rows)]
    lines = ["; ".join(map(_leader_words, links)) + ".", _instead(links, choices)]
    if any("cs" in one.flags for one in choices):
        lines.append(_cheapest(links[0], choices))
    return [line for line in lines if line]


def leader(rows: Sequence[Row]) -> Row | None:
    """The fastest row over one link: an arm that is faster than target-only, or target-only where
    every other arm is slower. None if neither is certain.
    """
    faster = [row for row in _others(rows) if row.faster]
    if faster:
        return max(faster, key=_mean)
    alone = next((row for row in rows if row.arm == BASELINE), None)
    return alone if all(row.slower for row in _others(rows)) else None


def _others(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm not in (BASELINE, AGAIN)]


def _mean(row: Row) -> float:
    return 0.0 if row.speed_up is None else row.speed_up.mean


def _trips(rows: Sequence[Row]) -> list[float]:
    return list(dict.fromkeys(row.rtt_ms for row in rows))


def _leader_words(rows: Sequence[Row]) -> str:
    first, link = leader(rows), f"{rows[0].rtt_ms:g} ms"
    if first is None:
        best = max(_others(rows), key=_mean)
        words = f"no significant difference from target-only (best: {best.arm} {best.speed_up})"
        return f"{link}: {words}"
    times = "" if first.arm == BASELINE else f", {first.speed_up} x target-only"
    return f"{link}: {first.arm} is fastest{times} ({first.tokens_per_second.median:.1f} tokens/s)"


def _instead(links: Sequence[Sequence[Row]], choices: Sequence[Choice]) -> str:
    """The command to use over each link where the default of `outrider run` was not faster."""
    commands, better = {one.name: one.command for one in choices}, dict[str, list[str]]()
    for rows in links:
        default = next((row for row in rows if row.arm == HYBRID), None)
        first = leader(rows)
        if default is not None and not default.faster and first is not None:
            better.setdefault(commands[first.arm], []).append(f"{default.rtt_ms:g} ms")
    words = "; ".join(f"`{command}` at {', '.join(trips)}" for command, trips in better.items())
    return f"hybrid is the default of `outrider run`; faster here: {words}." if words else ""


def _cheapest(rows: Sequence[Row], choices: Sequence[Choice]) -> str:
    """The cheapest position of the knob, in the first unit that is known of all."""
    labels = {one.name: one.label for one in choices if "cs" in one.flags}
    for name, unit in (("usd_per_million", "$"), ("joules_per_million", "J")):
        costs = [(row.costs[name], labels[row.arm]) for row in rows if row.arm in labels]
        if any(cost.median.value is None for cost, _ in costs):
            continue
        least, label = min(costs, key=lambda one: one[0].median.value or 0.0)
        is_certain = all(
            (least.high or 0) < (cost.low or 0) for cost, other in costs if other != label
        )
        return (
            f"Cheapest: {label}, {unit}{least.median.value:.3g} a million tokens "
            f"[{least.low:.3g}, {least.high:.3g}]"
            + ("." if is_certain else ", but the difference is not significant.")
        )
    return "The cost is unknown: no price and no joules."
