"""What Ray's ingress adds to a round trip: the same target behind it and reached directly, in turn.

    python -m benchmarks.ingress [--rounds 300] [--port 52961]

A fleet of one replica is started on this machine, and a target in a process of its own; both serve
the embedded model. Two round trips are measured: Describe, which needs no model, and `Go` to the
token that it brings, which takes a forward of one node. Rounds alternate between both ways, so that
a busy machine slows both alike. The ratio is that of a pair of rounds, the median of all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.harness import command, table_lines
from grpc_comm.client.connection import Connection, connect
from grpc_comm.transport import Address
from inference.command import run_command
from inference.order import Decode, End, Pace
from inference.sampling import SamplingParams
from outrider.options.roles import TargetRole
from outrider.target.ray_target import Fleet, start, stop
from outrider.target.spawn import target_process

PROMPT = list(range(3, 35))
WARM_UP = 20
_SECONDS = 30.0

Round = Callable[[], None]


def described(connection: Connection) -> Round:
    """A round trip without work."""

    def describe() -> None:
        connection.probe()

    return describe


def walked(connection: Connection, rounds: int) -> Round:
    """A round trip with a forward of one node: `Go`, and the token that it brings."""
    session, length = connection.session(), len(PROMPT)
    session.open(PROMPT, SamplingParams())
    session.decode(Decode(length + rounds, pace=Pace.WAIT))
    at = [length]

    def go() -> None:
        session.go(at[0] - 1)
        deadline, came = time.monotonic() + _SECONDS, 0
        while not came and time.monotonic() < deadline:
            progress = session.receive(_SECONDS)
            assert progress is not None
            assert progress.end in (End.NOT, End.MAX_TOKENS), progress.end
            came = len(progress.tokens)
        at[0] += came

    return go


def in_pairs(direct: Round, through: Round, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each round, direct and through the ingress, in turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + rounds):
        for way, times in zip((direct, through), taken, strict=True):
            began = time.perf_counter()
            way()
            if number >= WARM_UP:
                times.append((time.perf_counter() - began) * 1e3)
    return taken


def row(name: str, direct: list[float], through: list[float]) -> list[str]:
    """A line of the table."""
    ratio = median(b / a for a, b in zip(direct, through, strict=True))
    tail = [sorted(times)[int(0.99 * len(times))] for times in (direct, through)]
    cells = [median(direct), tail[0], median(through), tail[1]]
    added = median(b - a for a, b in zip(direct, through, strict=True))
    return [name, *(f"{cell:.2f}" for cell in cells), f"{added:.2f}", f"{ratio:.2f}"]


def measure(port: int, rounds: int) -> list[list[str]]:
    """The table's rows."""
    with (
        target_process(["--batch", "2"]) as address,
        connect(address) as direct,
        connect(f"127.0.0.1:{port}", timeout=_SECONDS) as through,
    ):
        both = rounds + WARM_UP + 1
        ways = {
            "Describe": (described(direct), described(through)),
            "Go to token": (walked(direct, both), walked(through, both)),
        }
        return [row(name, *in_pairs(*pair, rounds)) for name, pair in ways.items()]


def main() -> int:
    """Print the table."""
    parser = command(__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--port", type=int, default=52961)
    given = parser.parse_args()
    fleet = Fleet(1, 1, 2, 8, 0, 0.5, Address("127.0.0.1", given.port), 10.0, 300.0, 5.0)
    start(fleet, TargetRole(batch=2))
    try:
        head = ["round trip", "direct ms", "p99", "ingress ms", "p99", "added ms", "ratio"]
        print(*table_lines(head, measure(given.port, given.rounds)), sep="\n")
    finally:
        stop()
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
