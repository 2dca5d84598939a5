"""An emulated network link on this machine: a TCP proxy with delay and bandwidth.

    python -m outrider.measure.link 127.0.0.1:50051 127.0.0.1:0 20 50

It forwards connections on the second address to the first, with 20 ms of delay each way and 50
Mbit/s, 0 for no limit. It prints the bound address and runs until SIGTERM, SIGINT or the end of
stdin; SIGUSR1 cuts every connection at once. The process shares no interpreter with either side and
does not interpret the bytes. Reports of measurements through it say "emulated link".
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import SelectSelector
from typing import NamedTuple

from grpc_comm.transport import Address, parse_address
from inference.command import run_command
from inference.errors import InvalidRequest, Unavailable
from outrider.processes import end, end_with_input

READY = "listening on "
"""Start of the stdout line that names the bound address."""

_CHUNK = 16 * 2**10  # bytes; a chunk arrives when its last byte does
MAX_DELAY_MS = 60_000
_IN_FLIGHT = 4096  # chunks of one direction of a connection; then its sender waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


@dataclass(frozen=True)
class LinkShape:
    """Effects of a link on its connections. Raises InvalidRequest for values out of range."""

    delay_ms: float = 0.0  # one way, in each direction: a round trip takes twice as long
    mbit: float | None = None  # each way, shared by all connections; None for no limit

    def __post_init__(self) -> None:
        if not 0 <= self.delay_ms <= MAX_DELAY_MS:
            raise InvalidRequest(f"delay_ms is 0 to {MAX_DELAY_MS}: got {self.delay_ms:g}")
        if self.mbit is not None and not self.mbit > 0:
            raise InvalidRequest(f"mbit is above 0: got {self.mbit:g}")

    def __str__(self) -> str:
        limit = "" if self.mbit is None else f", {self.mbit:g} Mbit/s"
        return f"emulated link: {self.delay_ms:g} ms each way{limit}"


class _Direction:
    """One direction of the link. The bytes of all connections are sent one after the other."""

    def __init__(self, shape: LinkShape) -> None:
        self._delay = shape.delay_ms / 1e3
        self._byte_seconds = 0.0 if shape.mbit is None else 8 / (shape.mbit * 1e6)
        self._free = 0.0  # when all bytes so far are on it

    def arrival(self, sent: float, size: int) -> float:
        """The time at which the last of `size` bytes arrives if they are handed over at `sent`."""
        self._free = max(self._free, sent) + size * self._byte_seconds
        return self._free + self._delay


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
        self._up, self._down = (_Direction(shape) for _ in ("up", "down"))
        self._connections: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        """Carry every connection that is opened."""
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            connection = loop.create_task(self._connect(client))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

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
    words = [to, listen, str(shape.delay_ms), str(shape.mbit or 0)]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "outrider.measure.link", *words],
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


def main(arguments: Sequence[str]) -> int:
    """Run a link; 0 when it ended by a signal.

    arguments: address of the target, address to listen on, delay in ms each way, Mbit/s or 0
    """

    def link() -> int:
        to, listen = map(parse_address, arguments[:2])
        delay, mbit = map(float, arguments[2:])
        shape = LinkShape(delay, mbit or None)
        end_with_input()
        run(
            listen, to, shape, lambda bound: print(f"{READY}{bound} (to {to}; {shape})", flush=True)
        )
        return 0

    return run_command(link, debug=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
