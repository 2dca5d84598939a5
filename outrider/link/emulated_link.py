"""A network link of chosen quality on this machine: a TCP proxy with delay, jitter, bandwidth and
broken connections.

    python -m outrider.link.emulated_link --listen 127.0.0.1:0 --to 127.0.0.1:50051 --delay_ms 20
    --jitter_ms 2 --mbit 50 --cut_every_s 10

It prints the bound address and runs until SIGTERM or SIGINT; SIGUSR1 cuts every connection at once.
What was measured through it was measured over an emulated link: say so beside the figures.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

from grpc_comm.transport import Address, parse_address
from inference.command import Parser, add_flag
from inference.errors import OutriderError, Unavailable
from outrider.link.link_proxy import LinkShape, run
from outrider.processes import end

__all__ = ["LinkShape", "ShapedLink", "shaped_link"]

READY = "listening on "
"""Start of the stdout line that names the bound address."""

PERFECT = LinkShape()


class ShapedLink(NamedTuple):
    """A running link. Connect to `address`, which is HOST:PORT. `cut` breaks all open
    connections.
    """

    address: str  # HOST:PORT
    cut: Callable[[], None]


@contextmanager
def shaped_link(to: str, shape: LinkShape = PERFECT) -> Iterator[ShapedLink]:
    """Run a link to HOST:PORT in a process that ends with this context. Raises Unavailable when it
    does not start.
    """
    ends = ["--listen", "127.0.0.1:0", "--to", to]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "outrider.link.emulated_link", *ends, *_flags(shape)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise Unavailable(
                f"the link to {to} did not start: {line.strip() or 'its own message says why'}"
            )
        yield ShapedLink(
            line.removeprefix(READY).split()[0], lambda: process.send_signal(signal.SIGUSR1)
        )
    finally:
        end(process)


def _flags(shape: LinkShape) -> list[str]:
    """The flags that describe a shape."""
    flags = []
    for field in fields(LinkShape):
        value = getattr(shape, field.name)
        if value == field.default:
            continue
        flags.append(f"--{field.name}")
        if value is not True:
            flags.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return flags


def _parse(arguments: Sequence[str] | None) -> tuple[Address, Address, LinkShape]:
    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="port 0 lets the system choose (default: %(default)s)",
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where the target is")
    add = partial(add_flag, LinkShape, parser)
    add("delay_ms", "one way, in each direction (default: %(default)g)", type=float)
    add("jitter_ms", "up to so much more, evenly spread (default: %(default)g)", type=float)
    add("mbit", "megabits a second each way, shared by all (default: no limit)", type=float)
    add("cut_at_s", "S,S,...: break all connections at these moments", type=_moments)
    add("cut_every_s", "break all connections at this interval", type=float)
    add("cut_random", "--cut_every_s is a mean: cuts come at random", action="store_true")
    add("cut_fin", "cuts end connections in order (FIN), not by RST", action="store_true")
    add("seed", "of jitter and random cuts (default: %(default)s)", type=int)
    given = vars(parser.parse_args(arguments))
    listen, to = parse_address(given.pop("listen")), parse_address(given.pop("to"))
    return listen, to, LinkShape(**given)


def _moments(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a link; 0 when it ended by a signal."""
    try:
        listen, to, shape = _parse(arguments)
        run(
            listen, to, shape, lambda bound: print(f"{READY}{bound} (to {to}; {shape})", flush=True)
        )
    except OutriderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
