"""`--role draft --calibrate`: measures this machine's draft afresh and, where a target answers, the link to it; prints and keeps it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from grpc_comm.client import Connection
from grpc_comm.translate import Description
from inference.errors import Unavailable
from inference.times import LinkTimes
from outrider.generate import connect_target
from outrider.models import PREFILL_NODES, describe, find_checkpoint, load_model
from outrider.options import Options
from outrider.profiles import WIDEST, user_profiles

PROBES = 9
"""Empty exchanges with the target; fewer than LinkTimes keeps."""


def calibrate(options: Options) -> int:
    """Print what a call of the draft takes by width, and what the target and the link to it take when it answers."""
    checkpoint = find_checkpoint(options, "draft")
    length = checkpoint.sequence_length(options.sequence_length)
    model = load_model(options, checkpoint, rows=1, sequence_length=length, spare=WIDEST, max_nodes=PREFILL_NODES)
    times = user_profiles(afresh=True).draft(checkpoint, model, length)
    print(f"draft {checkpoint.name} on {describe(model.device)}: milliseconds of a call by the nodes that it ranks")
    print(_row("nodes", times))
    print(_row("ms", [_ms(seconds) for seconds in times.values()]))
    try:
        with connect_target(options, checkpoint.tokenizer) as target:
            print(*_described(target.description), _link(target), sep="\n")
    except Unavailable as error:
        print(f"the target and the link were not measured: {error}", file=sys.stderr)
    return 0


def measure_link(target: Connection, link: LinkTimes) -> None:
    """Let `link` observe a few exchanges without work."""
    for _ in range(PROBES):
        probe = target.probe()
        link.observe(probe.seconds, 0.0, probe.transferred)


def _described(target: Description) -> Iterator[str]:
    """What the target says of itself."""
    price = f", ${target.usd_per_hour:g} an hour" if target.usd_per_hour else ""
    yield f"target {target.model} on {target.device}, {target.rows} rows, {target.sessions} sessions open{price}"
    times = dict(target.times)
    if not times:
        yield "  it does not say what its forwards take"
        return
    yield "  milliseconds of a forward by nodes, for each number of rows"
    sizes = sorted({nodes for _, nodes in times})
    yield _row("nodes", sizes)
    for rows in sorted({rows for rows, _ in times}):
        yield _row(f"{rows} rows", [_ms(times[rows, nodes]) if (rows, nodes) in times else "-" for nodes in sizes])
    if target.draft_times:
        yield f"  milliseconds of a call of its own draft, {target.draft_model}"
        yield _row("nodes", [width for width, _ in target.draft_times])
        yield _row("ms", [_ms(seconds) for _, seconds in target.draft_times])


def _link(target: Connection) -> str:
    link = LinkTimes()
    measure_link(target, link)
    trip = link.round_trip
    return f"link to {target.address(0)}: round trip {_ms(trip.seconds)} ms, give or take {_ms(trip.spread)} ({PROBES} exchanges without work)"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _row(name: str, cells: Iterable[object]) -> str:
    return f"  {name:>8}" + "".join(f"{cell:>7}" for cell in cells)
