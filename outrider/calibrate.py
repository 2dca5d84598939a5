"""What --calibrate prints, and what is measured of a link.

--role draft --calibrate measures this machine's draft afresh and, where a target answers, the link
to it; prints and keeps it. That of roles target and fused_target is in outrider/serve.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from grpc_comm.client.connection import Connection, Probe
from grpc_comm.translate import Description
from inference.errors import Unavailable
from inference.planner.profiling import Tell
from inference.times import TRUSTED, LinkTimes
from outrider.generate import connect_target
from outrider.models import PREFILL_NODES, describe, find_checkpoint, load_model
from outrider.options import Options
from outrider.profiles import WIDEST, say, user_profiles

PROBES, PROBE_SECONDS = 9, 1.0
"""Empty exchanges with the target, fewer than LinkTimes keeps; on a link where these take
longer, as many as fit, TRUSTED at least.
"""


def calibrate(options: Options) -> int:
    """Print what a call of the draft takes by width, and what the target and the link to it take
    when it answers.
    """
    checkpoint = find_checkpoint(options, "draft")
    length = checkpoint.sequence_length(options.sequence_length)
    model = load_model(
        options, checkpoint, rows=1, sequence_length=length, spare=WIDEST, max_nodes=PREFILL_NODES
    )
    times = user_profiles(afresh=True).draft(checkpoint, model, length)
    print(
        f"draft {checkpoint.name} on {describe(model.device)}: milliseconds of a call by the nodes "
        "that it ranks"
    )
    print(_row("nodes", times))
    print(_row("ms", [_ms(seconds) for seconds in times.values()]))
    try:
        with connect_target(options, checkpoint.tokenizer) as target:
            print(*described(target.description), _link(target), sep="\n")
    except Unavailable as error:
        print(f"the target and the link were not measured: {error}", file=sys.stderr)
    return 0


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
                f"{_ms(probes[-1].seconds)} ms"
            )
        probes.append(probe())
    return probes


def link_times(probes: Sequence[Probe]) -> LinkTimes:
    """What these exchanges tell of the link."""
    link = LinkTimes()
    for probe in probes:
        link.observe(probe.seconds, 0.0, probe.transferred)
    return link


def described(target: Description) -> Iterator[str]:
    """What a target says of itself, line by line."""
    price = f", ${target.usd_per_hour:g} an hour" if target.usd_per_hour else ""
    busy = f", {target.sessions} sessions open" if target.sessions else ""
    yield f"target {target.model} on {target.device}, {target.rows} rows{busy}{price}"
    times = dict(target.times)
    if not times:
        yield "  it does not say what its forwards take"
        return
    yield "  milliseconds of a forward by nodes, for each number of rows"
    sizes = sorted({nodes for _, nodes in times})
    yield _row("nodes", sizes)
    for rows in sorted({rows for rows, _ in times}):
        yield _row(
            f"{rows} rows",
            [_ms(times[rows, nodes]) if (rows, nodes) in times else "-" for nodes in sizes],
        )
    if target.draft_times:
        yield f"  milliseconds of a call of its own draft, {target.draft_model}"
        yield _row("nodes", [width for width, _ in target.draft_times])
        yield _row("ms", [_ms(seconds) for _, seconds in target.draft_times])


def _link(target: Connection) -> str:
    probes = probe_link(target.probe, say)
    trip = link_times(probes).round_trip
    return (
        f"link to {target.address(0)}: round trip {_ms(trip.seconds)} ms, give or take "
        f"{_ms(trip.spread)} ({len(probes)} exchanges without work)"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _row(name: str, cells: Iterable[object]) -> str:
    return f"  {name:>8}" + "".join(f"{cell:>7}" for cell in cells)
