"""A network link of chosen quality on this machine: a TCP proxy with delay, jitter, bandwidth and
broken connections.

    python -m outrider.link.emulated_link --listen 127.0.0.1:0 --to 127.0.0.1:50051 --delay_ms 20
    --jitter_ms 2 --mbit 50 --cut_every_s 10

It prints the bound address and runs until SIGTERM or SIGINT; SIGUSR1 cuts every connection at once.
What was measured through it was measured over an emulated link: say so beside the figures.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from grpc_comm.transport import parse_address
from inference.command import run_command
from inference.errors import Unavailable
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Shown, flags_of
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


def _flags(shape: LinkShape) -> Iterator[str]:
    """The flags that describe a shape."""
    for name, flag in flags_of(LinkShape).items():
        value = shape.values()[name]
        if value != flag.field.default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            yield f"--{name}" if value is True else f"--{name}={text}"


class LinkCommand(CommandOptions, title="link"):
    """A network link of chosen quality on this machine, until SIGTERM or SIGINT; SIGUSR1 cuts every
    connection at once. What was measured through it was measured over an emulated link.
    """

    listen: Annotated[str, Shown("HOST:PORT")] = "127.0.0.1:0"
    """port 0 lets the system choose"""
    to: Annotated[str, Shown("HOST:PORT")]
    """where the target is"""
    shape: LinkShape = LinkShape()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a link; 0 when it ended by a signal."""
    options = parse_flags(LinkCommand, "python -m outrider.link.emulated_link", arguments)
    shape = options.shape

    def link() -> int:
        listen, to = parse_address(options.listen), parse_address(options.to)
        run(
            listen, to, shape, lambda bound: print(f"{READY}{bound} (to {to}; {shape})", flush=True)
        )
        return 0

    return run_command(link, debug=options.debug)


if __name__ == "__main__":
    sys.exit(main())
