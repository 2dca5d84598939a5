"""Machines' connections: bytes in order, late, held up, lost, cut. What gRPC makes of that is in
wire_client.py and wire_server.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulate.kernel import Kernel

KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT = 20.0, 10.0
"""As grpc_comm/transport.py asks for."""

CONNECT_SECONDS = 20.0
"""After which gRPC gives up a connection that nobody answers."""

SHORTEST, BANDWIDTH = 1e-5, 1e7
"""Seconds between two frames of a connection, and bytes a second."""


class Link:
    """The way between a client and a target, which faults happen to.

    seconds, jitter: one way, and at most on top
    held: seconds of the clock until which nothing passes
    mute: what is sent now, and from now on over open connections, is lost without a word
    factor: of its times
    """

    def __init__(self, seconds: float, jitter: float) -> None:
        self.seconds, self.jitter = seconds, jitter
        self.held, self.mute, self.factor = 0.0, False, 1.0
        self.pipes: list[Pipe] = []


class Pipe:
    """One TCP connection. Each direction keeps its order.

    ends: client and server, each of a process that may be stopped, or dead; they hear what is lost

    mute: nothing passes any more, and nobody is told: each side finds out by itself
    """

    def __init__(self, kernel: Kernel, link: Link, client: Any, server: Any) -> None:
        self.link, self.ends = link, (client, server)
        self.mute, self.is_open = link.mute, True
        self._kernel, self._arrivals, self._told = kernel, [0.0, 0.0], [False, False]
        link.pipes.append(self)
        for side in (0, 1):
            first = KEEPALIVE_SECONDS * kernel.chance.uniform(0.5, 1.0)
            kernel.after(first, partial(self._keep_alive, side))

    def send(self, side: int, size: int, deliver: Callable[[], None]) -> None:
        """Deliver what a side says, in order, unless the connection breaks before.

        side: 0 for the client
        """
        kernel = self._kernel
        if not self.is_open or kernel.over or self.mute:
            return
        link = self.link
        way = link.factor * (link.seconds + link.jitter * kernel.chance.random())
        at = max(kernel.now, link.held) + way
        at = max(at, self._arrivals[side] + SHORTEST + size / BANDWIDTH)
        self._arrivals[side] = at
        kernel.at(at, lambda: self._arrive(1 - side, deliver))

    def cut(self, words: str = "Socket closed") -> None:
        """Break it. Both sides hear of it, each when it can."""
        if not self.is_open:
            return
        self._close()
        for side in (0, 1):
            way = self.link.seconds * self._kernel.chance.random()
            self._kernel.after(way, partial(self._tell, side, words))

    def _close(self) -> None:
        self.is_open = False
        self.link.pipes.remove(self)

    def _tell(self, side: int, words: str) -> None:
        end = self.ends[side]
        if not (self._told[side] or end.process.dead):
            self._told[side] = True
            end.lost(self, words)

    def _arrive(self, side: int, deliver: Callable[[], None]) -> None:
        if self.is_open and not self.mute and not self.ends[side].process.dead:
            deliver()

    @property
    def _answers(self) -> bool:
        """Whether pings are answered."""
        ends = (end.process for end in self.ends)
        return not (self.mute or any(process.frozen or process.dead for process in ends))

    def _keep_alive(self, side: int) -> None:
        """Let a side break a connection whose other side is gone without a word."""
        if self.is_open and not self._told[side]:
            if not self._answers:
                self._kernel.after(KEEPALIVE_TIMEOUT, partial(self._give_up, side))
            self._kernel.after(KEEPALIVE_SECONDS, partial(self._keep_alive, side))

    def _give_up(self, side: int) -> None:
        if not self.is_open or self._answers:
            return
        self._tell(side, "keepalive watchdog timeout")
        if not self.mute:
            self.cut()
        elif all(told or end.process.dead for told, end in zip(self._told, self.ends, strict=True)):
            self._close()


class Network:
    """Addresses, who listens there, and the links that lead to them.

    listeners: servers by their addresses
    silent: addresses of machines that are gone without a word
    names: addresses of a name, as DNS tells them
    """

    def __init__(self, kernel: Kernel, seconds: float, jitter: float) -> None:
        """seconds, jitter: of every link"""
        self.kernel, self._times = kernel, (seconds, jitter)
        self.listeners: dict[str, Any] = {}
        self.silent: set[str] = set()
        self.names: dict[str, list[str]] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, process: str, address: str) -> Link:
        """Return the link of this process to this address."""
        key = process, address
        if key not in self._links:
            self._links[key] = Link(*self._times)
        return self._links[key]

    @property
    def links(self) -> list[Link]:
        return list(self._links.values())

    @property
    def pipes(self) -> list[Pipe]:
        return [pipe for link in self.links for pipe in link.pipes]

    def connect(self, client: Any, address: str, done: Callable[[Pipe | None, str], None]) -> None:
        """Connect. done: is given the connection, or None and why there is none"""
        link = self.link(client.process.name, address)
        way = 3 * link.factor * link.seconds + max(link.held - self.kernel.now, 0.0)

        def answer() -> None:
            listener = self.listeners.get(address)
            if client.process.dead:
                return
            if listener is None or listener.process.dead:
                done(None, "Failed to connect to remote host: connect: Connection refused (111)")
            else:
                done(Pipe(self.kernel, link, client, listener), "")

        def give_up() -> None:
            if not client.process.dead:
                done(None, "Failed to connect to remote host: Timeout occurred: FD Shutdown")

        listener = self.listeners.get(address)
        stopped = listener is not None and listener.process.frozen
        if link.mute or address in self.silent or stopped:
            self.kernel.after(CONNECT_SECONDS, give_up)
        else:
            self.kernel.after(way, answer)
