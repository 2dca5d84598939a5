"""Measures the link to a target by empty exchanges."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from inference.planner.profiling import Tell
from inference.times import TRUSTED

PROBES, PROBE_SECONDS = 9, 1.0
"""Number of empty exchanges with the target. On a slow link, as many as fit into PROBE_SECONDS, but
at least TRUSTED.
"""


def measure_round_trip(probe: Callable[[], float], tell: Tell) -> float:
    """Return the median seconds of several consecutive empty exchanges with the target.

    tell: receives a note if exchanges take longer than PROBE_SECONDS
    """
    probes, noted = [probe()], False
    while len(probes) < PROBES:
        slow = sum(probes) + probes[-1] > PROBE_SECONDS
        if slow and len(probes) >= TRUSTED:
            break
        if slow and not noted:
            noted = True
            tell(
                "measuring the link to the target: an empty exchange takes "
                f"{probes[-1] * 1e3:.0f} ms"
            )
        probes.append(probe())
    return median(probes)
