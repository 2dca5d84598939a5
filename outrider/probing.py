"""The link to a target, measured by exchanges without work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpc_comm.client.connection import Probe
from inference.planner.profiling import Tell
from inference.times import TRUSTED, LinkTimes

PROBES, PROBE_SECONDS = 9, 1.0
"""Empty exchanges with the target, fewer than LinkTimes keeps; on a link where these take
longer, as many as fit, TRUSTED at least.
"""


def probe_link(probe: Callable[[], Probe], tell: Tell) -> list[Probe]:
    """Exchanges without work, one after the other, enough for the round trip and its spread.

    tell: hears of a link on which they take longer than PROBE_SECONDS.  They are all of one size,
    since there is no exchange of another that is no work: what a byte takes is not told by them,
    but by the rounds, whose trees differ.
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


def link_times(probes: Sequence[Probe]) -> LinkTimes:
    """What these exchanges tell of the link."""
    link = LinkTimes()
    for probe in probes:
        link.observe(probe.seconds, 0.0, probe.transferred)
    return link
