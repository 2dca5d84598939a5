"""The verdict of a run in one or two lines. It claims no difference within the confidence interval,
or within that of target-only over itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.measure.arms import AGAIN, BASELINE, HYBRID, command
from outrider.measure.figures import Row, totals


def verdict(rows: Sequence[Row]) -> list[str]:
    """The fastest arm over each link, and what to run where the default is not faster."""
    together = totals(rows)
    trips = dict.fromkeys(row.rtt_ms for row in together)
    links = [[row for row in together if row.rtt_ms == trip] for trip in trips]
    lines = ["; ".join(map(_leader_words, links)) + ".", _instead(links)]
    return [line for line in lines if line]


def leader(rows: Sequence[Row]) -> Row | None:
    """The fastest row over one link: an arm that is faster than target-only, or target-only where
    every other arm is slower. None if neither is certain.
    """
    others = _others(rows)
    if faster := [row for row in others if row.faster]:
        return max(faster, key=_mean)
    alone = next((row for row in rows if row.arm == BASELINE), None)
    return alone if all(row.slower for row in others) else None


def _others(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm not in (BASELINE, AGAIN)]


def _mean(row: Row) -> float:
    return 0.0 if row.speed_up is None else row.speed_up.value


def _leader_words(rows: Sequence[Row]) -> str:
    fastest, link = leader(rows), f"{rows[0].rtt_ms:g} ms"
    if fastest is None:
        best = max(_others(rows), key=_mean)
        words = f"no significant difference from target-only (best: {best.arm} {best.speed_up})"
        return f"{link}: {words}"
    times = "" if fastest.arm == BASELINE else f", {fastest.speed_up} x target-only"
    return f"{link}: {fastest.arm} is fastest{times} ({fastest.tokens_per_second:.1f} tokens/s)"


def _instead(links: Sequence[Sequence[Row]]) -> str:
    """The command to use over each link where the default of `outrider run` was not faster."""
    better = dict[str, list[str]]()
    for rows in links:
        default = next((row for row in rows if row.arm == HYBRID), None)
        fastest = leader(rows)
        if default is not None and not default.faster and fastest is not None:
            better.setdefault(command(fastest.arm), []).append(f"{default.rtt_ms:g} ms")
    words = "; ".join(f"`{line}` at {', '.join(trips)}" for line, trips in better.items())
    return f"hybrid is the default of `outrider run`; faster here: {words}." if words else ""
