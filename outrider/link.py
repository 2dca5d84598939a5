"""A network link of chosen quality on this machine: a TCP proxy with delay, jitter, bandwidth and
broken connections.

    python -m outrider.link --listen 127.0.0.1:0 --to 127.0.0.1:50051 --delay_ms 20 --jitter_ms 2
    --mbit 50 --cut_every_s 10

It prints the bound address and runs until SIGTERM or SIGINT; SIGUSR1 cuts every connection at once.
What was measured through it was measured over an emulated link: say so beside the figures. It is a
process of its own, so that it shares no interpreter with either side, and knows nothing of what it
carries.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from selectors import SelectSelector
from typing import Any, NamedTuple

from grpc_comm.transport import Address, parse_address
from inference.errors import InvalidRequest, OutriderError, Unavailable

READY = "listening on "
"""Start of the stdout line that names the bound address."""

_CHUNK = 16 * 2**10  # bytes; a chunk arrives when its last byte does
_IN_FLIGHT = 4096  # chunks of one direction of a connection; then its sender waits
_STOP_SECONDS = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


@dataclass(frozen=True)
class Shape:
    """What a link does to its connections; raises InvalidRequest for a link that cannot be.

    delay_ms: one way, in each direction, so that a round trip takes twice as long.  jitter_ms: most
    that is added to it, evenly spread; nothing is overtaken.  mbit: megabits a second of each
    direction, shared by all connections; None is no limit. cut_at_s: moments at which every
    connection is broken, in seconds since the link listens.  cut_every_s: seconds from one to the
    next; with cut_random their mean (exponential).  cut_fin: cuts end connections in order instead
    of resetting them. seed: of jitter and random cuts.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    mbit: float | None = None
    cut_at_s: tuple[float, ...] = ()
    cut_every_s: float | None = None
    cut_random: bool = False
    cut_fin: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) <= 60_000:
                raise InvalidRequest(
                    f"--{name} {getattr(self, name)}: milliseconds from 0 to 60000"
                )
        for name in ("mbit", "cut_every_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequest(f"--{name} {value}: more than 0 is needed")
        if not all(0 <= moment < float("inf") for moment in self.cut_at_s):
            raise InvalidRequest(f"--cut_at_s {self.cut_at_s}: moments are 0 or more")
        if self.cut_random and self.cut_every_s is None:
            raise InvalidRequest("--cut_random needs --cut_every_s, the mean")

    def cuts(self) -> Iterator[float]:
        """The moments of all cuts, ascending; endless where they recur."""
        return heapq.merge(sorted(self.cut_at_s), self._recurring())

    def _recurring(self) -> Iterator[float]:
        if self.cut_every_s is None:
            return
        chance, moment = random.Random(self.seed), 0.0  # noqa: S311
        while True:
            moment += (
                chance.expovariate(1 / self.cut_every_s) if self.cut_random else self.cut_every_s
            )
            yield moment

    def __str__(self) -> str:
        said = [f"{self.delay_ms:g} ms each way"]
        said += [f"up to {self.jitter_ms:g} ms more"] * (self.jitter_ms > 0)
        said += [] if self.mbit is None else [f"{self.mbit:g} Mbit/s"]
        said += [f"cut at {', '.join(f'{moment:g}' for moment in self.cut_at_s)} s"] * bool(
            self.cut_at_s
        )
        said += (
            []
            if self.cut_every_s is None
            else [f"cut {'at random ' * self.cut_random}every {self.cut_every_s:g} s"]
        )
        return "emulated link: " + ", ".join(said)


class _Direction:
    """The link one way: bytes of all connections are put on it one after the other, then travel."""

    def __init__(self, shape: Shape, seed: str) -> None:
        self._delay, self._jitter = shape.delay_ms / 1e3, shape.jitter_ms / 1e3
        self._byte_seconds = 0.0 if shape.mbit is None else 8 / (shape.mbit * 1e6)
        self._chance = random.Random(seed)  # noqa: S311
        self._free = 0.0  # when all bytes so far are on it

    def arrival(self, sent: float, size: int) -> float:
        """When the last of `size` bytes that are handed over at `sent` arrives."""
        self._free = max(self._free, sent) + size * self._byte_seconds
        return self._free + self._delay + self._chance.uniform(0, self._jitter)


class _Way:
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

    def __init__(self, to: Address, shape: Shape) -> None:
        self._to, self._shape, self._delay = to, shape, shape.delay_ms / 1e3
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

    async def cut_on_time(self) -> None:
        """Break all connections at every moment of the shape."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for moment in self._shape.cuts():
            await asyncio.sleep(start + moment - loop.time())
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
        except OSError:  # an end is gone; the other hears of it when the link lets it
            await asyncio.sleep(self._delay)
        except asyncio.CancelledError:
            reset = not self._shape.cut_fin
            raise
        finally:
            _close(client, target, reset=reset)

    async def _carry(self, client: socket.socket, target: socket.socket, accepted: float) -> None:
        """Until both directions have ended. TCP's handshake takes a round trip, and the target
        hears its end half a one later.
        """
        up = _Way(client, target, self._up, accepted + 2 * self._delay)
        down = _Way(target, client, self._down, accepted + 3 * self._delay)
        tasks = [
            asyncio.create_task(part) for way in (up, down) for part in (way.take(), way.deliver())
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def _close(*ends: socket.socket, reset: bool) -> None:
    for end in ends:
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            with suppress(OSError):  # not connected any more
                end.shutdown(socket.SHUT_RDWR)
        end.close()


def run(listen: Address, to: Address, shape: Shape, on_ready: Callable[[Address], None]) -> None:
    """Be the link until SIGTERM or SIGINT; `on_ready` is told the bound address. At most some 500
    connections at once.

    Raises InvalidRequest when the address cannot be listened on.
    """
    loop = asyncio.SelectorEventLoop(SelectSelector())  # epoll would wake up to a millisecond late
    try:
        loop.run_until_complete(_until_signal(listen, to, shape, on_ready))
    finally:
        loop.close()


async def _until_signal(
    listen: Address, to: Address, shape: Shape, on_ready: Callable[[Address], None]
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
        tasks = [loop.create_task(link.accept(listener)), loop.create_task(link.cut_on_time())]
        on_ready(listen._replace(port=listener.getsockname()[1]))
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.close()


class ShapedLink(NamedTuple):
    """A running link. address: HOST:PORT to connect to.  cut: breaks every connection that is
    open.
    """

    address: str
    cut: Callable[[], None]


@contextmanager
def shaped_link(to: str, shape: Shape = Shape()) -> Iterator[ShapedLink]:
    """A link to HOST:PORT, in a process that ends with this context. Raises Unavailable when it
    does not start.
    """
    command = [
        sys.executable,
        "-m",
        "outrider.link",
        "--listen",
        "127.0.0.1:0",
        "--to",
        to,
        *_flags(shape),
    ]
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
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
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _flags(shape: Shape) -> list[str]:
    """The command line of a shape."""
    flags = []
    for field in fields(Shape):
        value = getattr(shape, field.name)
        if value != field.default:
            flags += [f"--{field.name}"]
            flags += (
                []
                if value is True
                else [",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
            )
    return flags


def _parse(arguments: Sequence[str] | None) -> tuple[Address, Address, Shape]:
    parser = argparse.ArgumentParser(
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
    numbers: dict[str, tuple[Any, str]] = {
        "delay_ms": (float, "one way, in each direction (default: %(default)g)"),
        "jitter_ms": (float, "up to so much more, evenly spread, in order (default: %(default)g)"),
        "mbit": (
            float,
            "megabits a second of each direction, for all connections together (default: no limit)",
        ),
        "cut_at_s": (_moments, "S,S,...: break all connections at these moments"),
        "cut_every_s": (float, "break all connections at this interval"),
        "seed": (int, "of jitter and random cuts (default: %(default)s)"),
    }
    for name, (kind, text) in numbers.items():
        parser.add_argument(f"--{name}", type=kind, default=getattr(Shape, name), help=text)
    parser.add_argument(
        "--cut_random", action="store_true", help="--cut_every_s is a mean: cuts come at random"
    )
    parser.add_argument(
        "--cut_fin",
        action="store_true",
        help="cuts end connections in order (FIN) instead of resetting them (RST)",
    )
    given = vars(parser.parse_args(arguments))
    listen, to = parse_address(given.pop("listen")), parse_address(given.pop("to"))
    return listen, to, Shape(**given)


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
