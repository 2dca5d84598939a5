"""A network link of chosen quality on this machine: a TCP proxy with delay, jitter, bandwidth and
broken connections.

    python -m outrider.measure.link --listen 127.0.0.1:0 --to 127.0.0.1:50051 --delay_ms 20
    --jitter_ms 2 --mbit 50 --cut_every_s 10

It prints the bound address and runs until SIGTERM or SIGINT; SIGUSR1 cuts every connection at once.
The process shares no interpreter with either side, and knows nothing of what it carries. What was
measured through it was measured over an emulated link: say so beside the figures.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from selectors import SelectSelector
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le

from grpc_comm.transport import Address, parse_address
from inference.command import run_command
from inference.errors import InvalidRequest, Unavailable
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import Group, Shown
from outrider.processes import end, end_with_input

READY = "listening on "
"""Start of the stdout line that names the bound address."""

_CHUNK = 16 * 2**10  # bytes; a chunk arrives when its last byte does
_IN_FLIGHT = 4096  # chunks of one direction of a connection; then its sender waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


Milliseconds = Annotated[float, Ge(0), Le(60_000), Shown("MS")]
Positive = Annotated[float, Gt(0)]


class LinkShape(Group, title="link"):
    """Effects of a link on its connections."""

    delay_ms: Milliseconds = 0.0
    """one way, in each direction: a round trip takes twice as long"""
    jitter_ms: Milliseconds = 0.0
    """up to so much more, evenly spread; nothing is overtaken"""
    mbit: Positive | None = None
    """megabits a second each way, shared by all connections (default: no limit)"""
    cut_every_s: Positive | None = None
    """break all connections at this interval"""
    seed: int = 0
    """of the jitter"""

    def __str__(self) -> str:
        said = [f"{self.delay_ms:g} ms each way"]
        if self.jitter_ms:
            said.append(f"up to {self.jitter_ms:g} ms more")
        if self.mbit is not None:
            said.append(f"{self.mbit:g} Mbit/s")
        if self.cut_every_s is not None:
            said.append(f"cut every {self.cut_every_s:g} s")
        return "emulated link: " + ", ".join(said)


class _Direction:
    """One direction of the link. The bytes of all connections are sent one after the other."""

    def __init__(self, shape: LinkShape, seed: str) -> None:
        self._delay, self._jitter = shape.delay_ms / 1e3, shape.jitter_ms / 1e3
        self._byte_seconds = 0.0 if shape.mbit is None else 8 / (shape.mbit * 1e6)
        self._chance = random.Random(seed)  # noqa: S311
        self._free = 0.0  # when all bytes so far are on it

    def arrival(self, sent: float, size: int) -> float:
        """The time at which the last of `size` bytes arrives if they are handed over at `sent`."""
        self._free = max(self._free, sent) + size * self._byte_seconds
        return self._free + self._delay + self._chance.uniform(0, self._jitter)


class _HalfConnection:
    """One direction of a connection: nothing is sent before `opened`, and nothing overtakes."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, direction: _Direction, opened: float
    ) -> None:
        self._source, self._sink, self._direction, self._opened = source, sink, direction, opened
        self._flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

    async def take(self) -> None:
        """Read until the end of data, which travels too."""
        loop, last, data = asyncio.get_running_loop(), 0.0, b"-"
        while data:
            data = await loop.sock_recv(self._source, _CHUNK)
            last = max(last, self._direction.arrival(max(loop.time(), self._opened), len(data)))
            await self._flight.put((last, data))

    async def deliver(self) -> None:
        """Write what arrives, when it does."""
        loop, data = asyncio.get_running_loop(), b"-"
        while data:
            arrival, data = await self._flight.get()
            if (left := arrival - loop.time()) > 0:
                await asyncio.sleep(left)
            if data:
                await loop.sock_sendall(self._sink, data)
        self._sink.shutdown(socket.SHUT_WR)


class _Link:
    """A listening link and its connections."""

    def __init__(self, to: Address, shape: LinkShape) -> None:
        self._to, self._delay = to, shape.delay_ms / 1e3
        self._up, self._down = (
            _Direction(shape, f"{shape.seed} {name}") for name in ("up", "down")
        )
        self._connections: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        """Carry every connection that is opened."""
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            connection = loop.create_task(self._connect(client))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def cut_every(self, seconds: float) -> None:
        """Break all connections at this interval."""
        while True:
            await asyncio.sleep(seconds)
            self.cut()

    def cut(self) -> None:
        """Break all connections; what is under way is lost, new ones may be opened."""
        for connection in self._connections:
            connection.cancel()

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, client: socket.socket) -> None:
        """Open the other half; a target that refuses is a link that resets."""
        loop = asyncio.get_running_loop()
        accepted, target, reset = loop.time(), socket.socket(_family(self._to)), True
        try:
            for end in (client, target):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(target, self._to)
            await self._carry(client, target, accepted)
            reset = False
        except* OSError:  # an end is gone; the other hears of it when the link lets it
            await asyncio.sleep(self._delay)
        finally:
            _close(client, target, reset=reset)

    async def _carry(self, client: socket.socket, target: socket.socket, accepted: float) -> None:
        """Carry bytes until both directions have ended.

        TCP's handshake takes a round trip, and the target hears its end half a round trip later.
        """
        up = _HalfConnection(client, target, self._up, accepted + 2 * self._delay)
        down = _HalfConnection(target, client, self._down, accepted + 3 * self._delay)
        async with asyncio.TaskGroup() as tasks:
            for part in (up.take(), up.deliver(), down.take(), down.deliver()):
                tasks.create_task(part)


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def _close(*sockets: socket.socket, reset: bool) -> None:
    for one in sockets:
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            with suppress(OSError):  # not connected any more
                one.shutdown(socket.SHUT_RDWR)
        one.close()


def run(
    listen: Address, to: Address, shape: LinkShape, on_ready: Callable[[Address], None]
) -> None:
    """Run the link until SIGTERM or SIGINT. `on_ready` is told the bound address. Raises
    InvalidRequest when the address cannot be listened on.

    It carries some 500 connections at once.
    """
    loop = asyncio.SelectorEventLoop(SelectSelector())  # epoll would wake up to a millisecond late
    try:
        loop.run_until_complete(_until_signal(listen, to, shape, on_ready))
    finally:
        loop.close()


async def _until_signal(
    listen: Address, to: Address, shape: LinkShape, on_ready: Callable[[Address], None]
) -> None:
    loop, stopped, link = asyncio.get_running_loop(), asyncio.Event(), _Link(to, shape)
    try:
        listener = socket.create_server(listen, family=_family(listen))
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {listen}: {error}") from error
    with listener:
        listener.setblocking(False)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        loop.add_signal_handler(signal.SIGUSR1, link.cut)
        tasks = [loop.create_task(link.accept(listener))]
        if shape.cut_every_s is not None:
            tasks.append(loop.create_task(link.cut_every(shape.cut_every_s)))
        on_ready(listen._replace(port=listener.getsockname()[1]))
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.close()


PERFECT = LinkShape()


class ShapedLink(NamedTuple):
    """A running link. Connect to `address`, which is HOST:PORT. `cut` breaks all open
    connections.
    """

    address: str  # HOST:PORT
    cut: Callable[[], None]


@contextmanager
def shaped_link(
    to: str, shape: LinkShape = PERFECT, listen: str = "127.0.0.1:0"
) -> Iterator[ShapedLink]:
    """Run a link from `listen` to `to`, both HOST:PORT, in a process that ends with this context,
    and not with Ctrl-C. Raises Unavailable when it does not start.
    """
    ends = ["--listen", listen, "--to", to, "--end_with_input"]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "outrider.measure.link", *ends, *_flags(shape)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
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
    given = {name: value for name, value in shape.values().items() if value is not None}
    return [f"--{name}={value}" for name, value in given.items()]


class LinkCommand(CommandOptions, title="link"):
    """A network link of chosen quality on this machine, until SIGTERM or SIGINT; SIGUSR1 cuts every
    connection at once. What was measured through it was measured over an emulated link.
    """

    listen: Annotated[str, Shown("HOST:PORT")] = "127.0.0.1:0"
    """port 0 lets the system choose"""
    to: Annotated[str, Shown("HOST:PORT")]
    """where the target is"""
    end_with_input: bool = False
    """end when standard input ends, as it does when the program that started this is killed"""
    shape: LinkShape = LinkShape()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a link; 0 when it ended by a signal."""
    options = parse_flags(LinkCommand, "python -m outrider.measure.link", arguments)
    shape = options.shape

    def link() -> int:
        listen, to = parse_address(options.listen), parse_address(options.to)
        if options.end_with_input:
            end_with_input()
        run(
            listen, to, shape, lambda bound: print(f"{READY}{bound} (to {to}; {shape})", flush=True)
        )
        return 0

    return run_command(link, debug=options.debug)


if __name__ == "__main__":
    sys.exit(main())
