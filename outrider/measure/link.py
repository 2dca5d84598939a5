"""An emulated network link on this machine: a TCP proxy with a delay.

    python -m outrider.measure.link 127.0.0.1:50051 127.0.0.1:0 20

This forwards connections on the second address to the first, with 20 ms of delay each way. It
prints the address it listens on and runs until SIGTERM or the end of stdin; SIGUSR1 cuts all
connections. It is a separate process, so that neither side shares its Python interpreter. It
handles about 500 connections.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from selectors import SelectSelector
from typing import NamedTuple

from grpc_comm.transport import Address, parse_address
from inference.command import run_command, say
from inference.errors import InvalidRequest
from outrider.processes import READY, end_with_input

_CHUNK = 16 * 2**10  # bytes; a chunk arrives when its last byte does
_APART = 1e-6  # seconds between two chunks: the event loop does not order simultaneous calls
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


class _Link:
    """The connections of a link. delay: seconds, one way"""

    def __init__(self, to: Address, delay: float) -> None:
        self._to, self._delay = to, delay
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: StreamReader, client: StreamWriter) -> None:
        """Forward a new connection."""
        connection = asyncio.get_running_loop().create_task(self._carry(reader, client))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    def cut(self) -> None:
        """Break all connections and drop bytes in transit. New connections are accepted."""
        for connection in self._connections:
            connection.cancel()

    async def _carry(self, reader: StreamReader, client: StreamWriter) -> None:
        """Connect to the target and forward both directions. If the target refuses, reset the
        client's connection. Delays include TCP's handshake, which takes a round trip.
        """
        accepted, halves = asyncio.get_running_loop().time(), [client]
        try:
            answers, target = await asyncio.open_connection(*self._to, limit=_CHUNK)
            halves.append(target)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, target, accepted + 2 * self._delay))
                tasks.create_task(self._forward(answers, client, accepted + 3 * self._delay))
            for half in halves:
                half.close()
        except* OSError:  # one end disconnected; the other notices after the link's delay
            await asyncio.sleep(self._delay)
        finally:
            for half in halves:
                if not half.is_closing():
                    sock = half.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    half.transport.abort()

    async def _forward(self, source: StreamReader, sink: StreamWriter, opened: float) -> None:
        """Forward the bytes of a direction in order, and then its end of file. Nothing is sent
        before the time `opened`.
        """
        loop, arrival, data = asyncio.get_running_loop(), 0.0, b"-"
        while data:
            data = await source.read(_CHUNK)
            arrival = max(max(loop.time(), opened) + self._delay, arrival + _APART)
            if data:
                loop.call_at(arrival, sink.write, data)
        await asyncio.sleep(arrival - loop.time())
        sink.write_eof()


async def _serve(listen: Address, to: Address, delay: float) -> None:
    """Run a link until SIGTERM. Raises InvalidRequest if the address is in use."""
    loop, stopped, link = asyncio.get_running_loop(), asyncio.Event(), _Link(to, delay)
    try:
        server = await asyncio.start_server(link.accept, *listen, limit=_CHUNK)
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {listen}: {error}") from error
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for the command using the link
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, link.cut)
    bound = listen._replace(port=server.sockets[0].getsockname()[1])
    say(f"{READY}{bound} (to {to})")
    await stopped.wait()  # the loop's end cancels the connections


class EmulatedLink(NamedTuple):
    """A running link: the address to connect to, and its process."""

    address: str  # HOST:PORT
    pid: int

    def cut(self) -> None:
        """Break all connections."""
        os.kill(self.pid, signal.SIGUSR1)


@contextmanager
def emulated_link(
    to: str, delay_ms: float = 0.0, listen: str = "127.0.0.1:0"
) -> Iterator[EmulatedLink]:
    """Run a link from `listen` to `to`, both HOST:PORT, in a process that ends with this context
    and ignores Ctrl-C. Raises Unavailable if it does not start.

    delay_ms: one way, in each direction: a round trip takes twice as long
    """
    from outrider.target.spawn import listening  # imports models, which the link's process omits

    words = [to, listen, str(delay_ms)]
    with listening("link", [sys.executable, "-m", "outrider.measure.link", *words]) as link:
        yield EmulatedLink(link.address, link.pid)


def main(arguments: Sequence[str]) -> int:
    """Run a link until a signal ends it. Returns 0.

    arguments: address of the target, address to listen on, delay in ms each way
    """

    def link() -> int:
        to, listen = map(parse_address, arguments[:2])
        end_with_input()
        # epoll would wake up as much as a millisecond late
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(SelectSelector())
        ) as run:
            run.run(_serve(listen, to, float(arguments[2]) / 1e3))
        return 0

    return run_command(link, debug=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
