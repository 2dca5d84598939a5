"""Floods of HTTP/2 frames by a caller without a token, and a target in a process of its own.

Run as a program it serves the target of tests/support/wire_fixtures.py until a signal, and prints
its port:
`python -m tests.support.flooding KEYS_FILE [CERTIFICATE KEY]`.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import Target, serve
from grpc_comm.transport import Address
from tests.support.hostile import PREFACE, call_headers, frame, literal
from tests.support.wire_fixtures import LOOPBACK, WAIT, describe, successor_engine

FLOOD_SECONDS = 1.5
FLOOD_BYTES = 12 * 2**20

_DATA, _HEADERS, _SETTINGS, _PING, _CONTINUATION = 0, 1, 4, 6, 9
_END_HEADERS = 4
_INDEXED_LITERAL, _PLAIN_LITERAL, _NEWEST_ENTRY = b"\x40", b"\0", b"\xbe"
_EMPTY_TABLE = b"\x20\x3f\xe1\x1f"  # of size 0, then of 4,096 again
_LONG = 4000  # of the 4,096 bytes that the dynamic table has


class Flooded(NamedTuple):
    """A target that listens. authority: PEM file of its certificate's signer (None: plaintext)."""

    address: Address
    pid: int
    authority: Path | None

    def connect(self) -> socket.socket:
        """A connection, greeted."""
        plain = socket.create_connection(self.address, timeout=WAIT)
        peer = plain if self.authority is None else _tls(plain, self.authority)
        peer.sendall(PREFACE + frame(_SETTINGS, 0, 0, b""))
        return peer


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(said.stdout) * 1024


@contextmanager
def flooded(
    keys: Path,
    certificate: Sequence[Path] = (),
    authority: Path | None = None,
) -> Iterator[Flooded]:
    """A target with these keys in a process that ends with this context."""
    command = [sys.executable, "-m", "tests.support.flooding", str(keys), *map(str, certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Flooded(LOOPBACK._replace(port=port), process.pid, authority)
        finally:
            process.terminate()
            process.wait(WAIT)


def flood(target: Flooded, frames: Callable[[], Iterator[bytes]]) -> int:
    """Send for so many seconds, or bytes, and return how many were sent.

    A connection that is closed is opened again; answers are read.
    """
    sent, deadline = 0, time.monotonic() + FLOOD_SECONDS
    while sent < FLOOD_BYTES and time.monotonic() < deadline:
        with target.connect() as peer, suppress(ConnectionError, ssl.SSLError):
            peer.settimeout(0.2)
            for chunk in frames():
                with suppress(TimeoutError):  # it reads no more
                    peer.sendall(chunk)
                sent += len(chunk)
                _read(peer)
                if sent >= FLOOD_BYTES or time.monotonic() >= deadline:
                    break
    return sent


def _read(peer: socket.socket) -> None:
    """What has been answered so far; raises ConnectionError at its end."""
    wait = peer.gettimeout()
    peer.settimeout(0)
    try:
        if not peer.recv(2**20):
            raise ConnectionResetError("the target closed the connection")
    except (BlockingIOError, ssl.SSLWantReadError):
        pass
    finally:
        peer.settimeout(wait)


def pings() -> Iterator[bytes]:
    return itertools.repeat(frame(_PING, 0, 0, b"12345678") * 1000)


def settings() -> Iterator[bytes]:
    """Of each kind that a peer may change."""
    values = struct.pack(">HIHI", 1, 4096, 3, 100)
    return itertools.repeat(frame(_SETTINGS, 0, 0, values) * 1000)


def empty_data() -> Iterator[bytes]:
    """On a stream that was opened without a token."""
    yield frame(_HEADERS, _END_HEADERS, 1, call_headers())
    yield from itertools.repeat(frame(_DATA, 0, 1, b"") * 1000)


def table_churn() -> Iterator[bytes]:
    """Calls whose headers drive each other out of the table; each is as long as the table."""
    for stream in itertools.count(1, 2):
        header = _INDEXED_LITERAL + literal(f"x-{stream}") + literal("v" * _LONG)
        yield frame(_HEADERS, _END_HEADERS, stream, _EMPTY_TABLE + call_headers() + header)


def header_bomb() -> Iterator[bytes]:
    """Calls of one long header that is then named by one byte, 8,000 times."""
    for stream in itertools.count(1, 2):
        header = _INDEXED_LITERAL + literal("x") + literal("v" * _LONG)
        yield frame(_HEADERS, _END_HEADERS, stream, call_headers() + header + _NEWEST_ENTRY * 8000)


def continuations() -> Iterator[bytes]:
    """Headers that never end."""
    yield frame(_HEADERS, 0, 1, call_headers())
    header = _PLAIN_LITERAL + literal("x") + literal("v" * 1000)
    yield from itertools.repeat(frame(_CONTINUATION, 0, 1, header * 15))


FLOODS = {
    "PING": pings,
    "SETTINGS": settings,
    "empty DATA": empty_data,
    "HPACK table churn": table_churn,
    "HPACK bomb": header_bomb,
    "CONTINUATION": continuations,
}


def _tls(plain: socket.socket, authority: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain, server_hostname="localhost")


def _serve(keys: Path, certificate: Path | None = None, key: Path | None = None) -> None:
    security = SecurityOptions(keys_file=keys, tls_cert=certificate, tls_key=key)
    engine = successor_engine()
    target = Target(engine, describe(engine), LOOPBACK, security=security)
    serve(target, lambda bound: print(bound.port, flush=True))


if __name__ == "__main__":
    _serve(*map(Path, sys.argv[1:]))
