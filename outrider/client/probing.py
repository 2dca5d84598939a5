"""The link to a target, measured by exchanges without work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from grpc_comm.client.call import Probe
from inference.planner.profiling import Tell
from inference.times import TRUSTED

PROBES, PROBE_SECONDS = 9, 1.0
"""Empty exchanges with the target. On a slow link as many as fit into PROBE_SECONDS, but at least
TRUSTED.
"""


def probe_link(probe: Callable[[], Probe], tell: Tell) -> list[Probe]:
    """Make empty exchanges one after the other, enough for the round trip.

    tell: hears of a link on which exchanges take longer than PROBE_SECONDS
    """
    probes, told = [probe()], False
    while len(probes) < PROBES:
        slow = sum(one.seconds for one in probes) + probes[-1].seconds > PROBE_SECONDS
        if slow and len(probes) >= TRUSTED:
            break
        if slow and not told:
            told = True
            tell(
                "measuring the link to the target: an exchange without work takes "
                f"{probes[-1].seconds * 1e3:.0f} ms"
            )
        probes.append(probe())
    return probes


def round_trip(probes: Sequence[Probe]) -> float:
    """Return the seconds of an exchange: the median of these."""
    return median(probe.seconds for probe in probes)
