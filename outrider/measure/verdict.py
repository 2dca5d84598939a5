"""The verdict of a comparison, in three lines at most. It claims nothing that lies within an
interval, or within that of target-only over itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from outrider.measure.architectures import FUSED, HYBRID, Choice
from outrider.measure.figures import AGAIN, BASELINE, Row

Choices = Mapping[str, Choice]
"""The architecture and setting of each arm, by its name."""


def verdict(
    rows: Sequence[Row], choices: Choices, *, curve: bool = False, shared: bool = True
) -> list[str]:
    """The verdict on these rows.

    curve: whether the cheapest position of the knob is asked for
    shared: whether draft and target computed on this machine, with its times
    """
    if not any(row.arm == BASELINE for row in rows):
        return ["No speed-up is given: target-only was not run."]
    lines = [
        "; ".join(_leader_words(trip, _at(rows, trip)) for trip in _trips(rows)) + ".",
        " ".join(filter(None, (_advice(rows, choices), _instead(rows, choices, shared)))),
        _cheapest(_at(rows, rows[0].rtt_ms), choices) if curve else "",
    ]
    return [line for line in lines if line]


def leader(rows: Sequence[Row]) -> Row | None:
    """The fastest row over one link: an arm that is faster than target-only, or target-only where
    every other arm is slower. None where neither can be told.
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


def _at(rows: Sequence[Row], rtt_ms: float) -> list[Row]:
    return [row for row in rows if row.rtt_ms == rtt_ms]


def _leader_words(rtt: float, rows: Sequence[Row]) -> str:
    first = leader(rows)
    if first is None:
        best = max(_others(rows), key=_mean)
        return (
            f"{rtt:g} ms: no difference from target-only can be told (best: {best.arm} {_x(best)})"
        )
    against = "" if first.arm == BASELINE else f", {_x(first)}"
    speed = f"{first.tokens_per_second.median:.1f} tokens/s"
    return f"{rtt:g} ms: {first.arm} is fastest{against} ({speed})"


def _x(row: Row) -> str:
    """The speed-up with its interval."""
    assert row.speed_up is not None
    mean, low, high = row.speed_up
    return f"{mean:.2f}x target-only [{low:.2f}, {high:.2f}]"


def _advice(rows: Sequence[Row], choices: Choices) -> str:
    """At which round trips drafting here, or beside the target, is faster than target-only."""
    drafted = [(row, choices[row.arm].architecture) for row in _others(rows)]
    places = {
        "on this machine": [row for row, one in drafted if one.drafts_here],
        "beside the target": [row for row, one in drafted if one.name == FUSED],
    }
    said = [f"{where} {_outcomes(found)}" for where, found in places.items() if found]
    return f"Drafting {'; '.join(said)}." if said else ""


def _outcomes(rows: Sequence[Row]) -> str:
    """Outcomes at each round trip, by the best of these rows."""
    trips: dict[str, list[str]] = {}
    for trip in _trips(rows):
        there = _at(rows, trip)
        outcome = "cannot be told from target-only"
        if any(row.faster for row in there):
            outcome = "is faster"
        elif all(row.slower for row in there):
            outcome = "is slower than target-only"
        trips.setdefault(outcome, []).append(f"{trip:g}")
    return ", ".join(f"{outcome} at {', '.join(where)} ms" for outcome, where in trips.items())


def _instead(rows: Sequence[Row], choices: Choices, shared: bool) -> str:
    """Advice where hybrid, the default of `outrider run`, was not faster."""
    better = dict[str, list[str]]()
    for row in rows:
        first = leader(_at(rows, row.rtt_ms))
        if row.arm == HYBRID and not row.faster and first is not None:
            command = f"`{choices[first.arm].command}`"
            better.setdefault(command, []).append(f"{row.rtt_ms:g} ms")
    if not better:
        return ""
    said = "; ".join(f"{command} at {', '.join(trips)}" for command, trips in better.items())
    elsewhere = " For a target elsewhere give --emulate PROFILE or --target_host HOST:PORT."
    return f"hybrid is the default of `outrider run`; faster here: {said}." + elsewhere * shared


def _cheapest(rows: Sequence[Row], choices: Choices) -> str:
    """The cheapest position of the knob, in the first unit that is known of all."""
    steered = [row for row in _others(rows) if choices[row.arm].setting.knob is not None]
    for name, unit in (("usd_per_million", "$"), ("joules_per_million", "J")):
        costs = [(row.costs[name], choices[row.arm].setting.label) for row in steered]
        if not costs or any(cost.median.value is None for cost, _ in costs):
            continue
        least, label = min(costs, key=lambda one: one[0].median.value or 0.0)
        others = [cost for cost, other in costs if other != label]
        told = all((least.high or 0.0) < (cost.low or 0.0) for cost in others)
        return (
            f"Cheapest: {label}, {unit}{least.median.value:.3g} a million tokens "
            f"[{least.low:.3g}, {least.high:.3g}]"
            + ("." if told else ", but it cannot be told from the others.")
        )
    return "Nothing is known of the cost: no price and no joules."


def commands(choices: Choices) -> Iterator[str]:
    """Each arm with the command that decodes in this way, aligned."""
    width = max(map(len, choices))
    yield "Commands, to which the flags that name your models are added:"
    for name, choice in choices.items():
        yield f"{name:<{width}}  {choice.command}"
