"""What --calibrate measures and prints for role draft: the draft on this machine and, where a
target answers, the target and the link to it.

Roles target and fused_target are in outrider/target.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grpc_comm.client.connection import Connection
from grpc_comm.translate import Description
from inference.command import say
from inference.errors import Unavailable
from outrider.connecting import connect_target
from outrider.devices import describe
from outrider.draft_methods import find_draft
from outrider.models import PREFILL_NODES
from outrider.options.roles import DraftRole
from outrider.precision import settled
from outrider.probing import link_times, probe_link
from outrider.profiles import WIDEST, user_profiles


def calibrate(options: DraftRole) -> int:
    """Print the seconds of a draft call by width and, when a target answers, those of the target
    and of the link.
    """
    draft = find_draft(options)
    length = draft.sequence_length(options.sequence_length)
    draft = settled(draft, options, drafts=True)
    model = draft.load(
        options, rows=1, sequence_length=length, spare=WIDEST, max_nodes=PREFILL_NODES
    )
    times = user_profiles(options).draft(draft, model, length)
    print(
        f"draft {draft.name} on {describe(model.device)}: milliseconds of a call by the nodes "
        "that it ranks"
    )
    print(_row("nodes", times))
    print(_row("ms", [_ms(seconds) for seconds in times.values()]))
    try:
        with connect_target(options, draft.tokenizer, draft.name) as target:
            print(*described(target.description), _link(target), sep="\n")
    except Unavailable as error:
        say(f"the target and the link were not measured: {error}")
    return 0


def described(target: Description) -> Iterator[str]:
    """A target's description of itself, line by line."""
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
        f"link to {target.address}: round trip {_ms(trip.seconds)} ms, give or take "
        f"{_ms(trip.spread)} ({len(probes)} exchanges without work)"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _row(name: str, cells: Iterable[object]) -> str:
    return f"  {name:>8}" + "".join(f"{cell:>7}" for cell in cells)
