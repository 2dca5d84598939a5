"""Frames without end, by a caller without a token, do not fill the target's memory.

Only gRPC's core sees these frames. Its version 1.71.2 kept 700 MB of the PING flood.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.certificate import make_certificate
from grpc_comm.transport import Address
from tests.support.hostile import PREFACE, call_headers, frame, keys_file, literal
from tests.support.wire_fixtures import WAIT, process, resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MOST_BYTES = 64 * 2**20
"""That a flood may add: caches and arenas of the core, and what its allocator keeps."""

MOST_BYTES_OF_HEADERS = 256 * 2**20
"""The core takes 1 to 2 MB to refuse a call of 8,000 headers, of 64 calls at once."""

ENOUGH_BYTES = 2**19
"""Of a flood, to be one: some 700 bytes a frame would exceed the limit."""

FLOOD_SECONDS, WRITE_SECONDS = 1.0, 0.2
FLOOD_BYTES = 4 * 2**20

DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
END_HEADERS = 4
INDEXED_LITERAL, PLAIN_LITERAL, NEWEST_ENTRY = b"\x40", b"\0", b"\xbe"
EMPTY_TABLE = b"\x20\x3f\xe1\x1f"  # of size 0, then of 4,096 again
LONG = 4000  # of the 4,096 bytes that the dynamic table has


class Flooded(NamedTuple):
    """A target that listens. authority: PEM file of its certificate's signer (None: plaintext)"""

    address: Address
    pid: int
    authority: Path | None = None

    def connect(self) -> socket.socket:
        peer = socket.create_connection(self.address, timeout=WAIT)
        if self.authority is not None:
            context = ssl.create_default_context(cafile=self.authority)
            context.set_alpn_protocols(["h2"])
            peer = context.wrap_socket(peer, server_hostname="localhost")
        peer.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        return peer


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Flooded]]:
    """By whether they use TLS."""
    folder = tmp_path_factory.mktemp("tls")
    files = make_certificate(folder / "certificates", ["localhost"])
    keys = keys_file(folder / "keys.json", alice={})
    with (
        process(keys) as (plain, address),
        process(keys, files.certificate, files.key) as (encrypted, other),
    ):
        yield {
            False: Flooded(address, plain.pid),
            True: Flooded(other, encrypted.pid, files.ca),
        }


def is_healthy(target: Flooded) -> bool:
    address = f"localhost:{target.address.port}"
    if target.authority is None:
        channel = grpc.insecure_channel(address)
    else:
        trusted = grpc.ssl_channel_credentials(target.authority.read_bytes())
        channel = grpc.secure_channel(address, trusted)
    with channel:
        request = health_pb2.HealthCheckRequest()
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=WAIT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def flood(target: Flooded, frames: Callable[[], Iterator[bytes]]) -> int:
    """Send for so many seconds, or bytes, and return how many were sent.

    A connection that is closed is opened again; answers are read.
    """
    sent, deadline = 0, time.monotonic() + FLOOD_SECONDS
    while sent < FLOOD_BYTES and time.monotonic() < deadline:
        with target.connect() as peer, suppress(ConnectionError, ssl.SSLError):
            peer.settimeout(WRITE_SECONDS)
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
    peer.settimeout(0)
    with suppress(BlockingIOError, ssl.SSLWantReadError):
        if not peer.recv(2**20):
            raise ConnectionResetError("the target closed the connection")
    peer.settimeout(WRITE_SECONDS)


def pings() -> Iterator[bytes]:
    return itertools.repeat(frame(PING, 0, 0, b"12345678") * 1000)


def settings() -> Iterator[bytes]:
    values = struct.pack(">HIHI", 1, 4096, 3, 100)
    return itertools.repeat(frame(SETTINGS, 0, 0, values) * 1000)


def empty_data() -> Iterator[bytes]:
    """On a stream that was opened without a token."""
    yield frame(HEADERS, END_HEADERS, 1, call_headers())
    yield from itertools.repeat(frame(DATA, 0, 1, b"") * 1000)


def table_churn() -> Iterator[bytes]:
    """Calls whose headers drive each other out of the table; each is as long as the table."""
    for stream in itertools.count(1, 2):
        header = INDEXED_LITERAL + literal(f"x-{stream}") + literal("v" * LONG)
        yield frame(HEADERS, END_HEADERS, stream, EMPTY_TABLE + call_headers() + header)


def header_bomb() -> Iterator[bytes]:
    """Calls of one long header that is then named by one byte, 8,000 times."""
    for stream in itertools.count(1, 2):
        header = INDEXED_LITERAL + literal("x") + literal("v" * LONG)
        yield frame(HEADERS, END_HEADERS, stream, call_headers() + header + NEWEST_ENTRY * 8000)


def continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, call_headers())
    header = PLAIN_LITERAL + literal("x") + literal("v" * 1000)
    yield from itertools.repeat(frame(CONTINUATION, 0, 1, header * 15))


FLOODS = {
    "PING": pings,
    "SETTINGS": settings,
    "empty DATA": empty_data,
    "HPACK table churn": table_churn,
    "HPACK bomb": header_bomb,
    "CONTINUATION": continuations,
}


@pytest.mark.parametrize(("kind", "tls"), [*((kind, False) for kind in FLOODS), ("PING", True)])
def test_a_flood_of_frames_does_not_fill_the_memory(
    kind: str, tls: bool, targets: dict[bool, Flooded]
) -> None:
    target = targets[tls]
    before = resident(target.pid)
    assert flood(target, FLOODS[kind]) > ENOUGH_BYTES
    assert is_healthy(target)
    most = MOST_BYTES_OF_HEADERS if kind == "HPACK bomb" else MOST_BYTES
    assert resident(target.pid) - before < most
