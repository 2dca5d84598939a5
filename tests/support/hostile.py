"""Peers that mean no good: callers with keys of their own, and HTTP/2 by hand."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from grpc_comm.client.connection import connect
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.translate import PROTOCOL_VERSION
from grpc_comm.transport import Address
from inference.order import Decode
from inference.sampling import SamplingParams
from tests.support.wire_fixtures import WAIT, candidates, decode_to, opening, rest

SESSION = "/outrider.v1.Target/Session"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SECRET = "token-that-nobody-may-see"


def keys_file(path: Path, **limits: dict[str, int]) -> Path:
    """A key for each name, with these limits; its token is token_of(name)."""
    digests = {name: hashlib.sha256(token_of(name).encode()).hexdigest() for name in limits}
    keys = [{"name": name, "token_sha256": digests[name], **limits[name]} for name in limits]
    write_file(path, json.dumps({"keys": keys}))
    return path


def write_file(path: Path, text: str) -> None:
    """Replace a secret file whole."""
    following = path.with_suffix(".new")
    following.write_text(text)
    following.chmod(0o600)
    following.replace(path)


def token_of(name: str) -> str:
    return f"{SECRET}-{name}"


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token_of(name)}"),)


def known_as(name: str, folder: Path) -> SecurityOptions:
    """What a client with the token of this name is started with."""
    path = folder / f"{name}.token"
    write_file(path, token_of(name))
    return SecurityOptions(token_file=path)


class Neighbour:
    """A session of a target that counts upwards; what comes must be what it would have been."""

    def __init__(self, session: RemoteSession) -> None:
        self._session, self._length = session, 3
        session.open([1, 2, 3], SamplingParams())

    def goes_on(self) -> None:
        length = self._length
        self._session.propose(candidates(self._session, length - 1, [length + 1, length + 5]))
        self._session.decode(Decode(length + 3))
        assert rest(self._session) == [length + 1, length + 2, length + 3]
        self._length += 3


@contextmanager
def neighbour(address: Address, name: str = "", folder: Path | None = None) -> Iterator[Neighbour]:
    security = SecurityOptions() if folder is None else known_as(name, folder)
    with connect(str(address), security=security) as connection:
        session = connection.session()
        yield Neighbour(session)
        session.close()


def resume(opened: pb.Opened, epoch: int = 1, **changes: Any) -> pb.ClientMessage:
    fields: dict[str, Any] = {
        "session_id": opened.session_id,
        "protocol_version": PROTOCOL_VERSION,
        "resume_key": opened.resume_key,
        "epoch": epoch,
        "length": 3,
    }
    return pb.ClientMessage(resume=pb.Resume(**(fields | changes)))


class RawPeer:
    """One HTTP/2 connection with at most one call, which reads only when told to."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=WAIT)

    def greet(self, window: int = 65535) -> None:
        """`window`: bytes of messages that it takes before it reads them."""
        self.socket.sendall(PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, window)))

    def call(self, method: str = SESSION) -> None:
        self.socket.sendall(frame(1, 4, 1, call_headers(method)))

    def send(self, message: bytes, announced: int | None = None) -> None:
        """A message, or the beginning of one of `announced` bytes."""
        prefix = struct.pack(">BI", 0, len(message) if announced is None else announced)
        self.socket.sendall(frame(0, 0, 1, prefix + message))

    def ended(self) -> bool:
        """Whether the other side ends connection or stream in time."""
        try:
            for kind, flags, stream, _ in self._frames():
                if stream == 1 and (kind == 3 or (kind in (0, 1) and flags & 1)):
                    break
        except TimeoutError:
            return False
        return True

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each, until the other side hangs up."""
        received = b""
        while chunk := self.socket.recv(65536):
            received += chunk
            while len(received) >= 9 + (size := int.from_bytes(received[:3], "big")):
                stream = int.from_bytes(received[5:9], "big")
                yield received[3], received[4], stream, received[9 : 9 + size]
                received = received[9 + size :]

    def close(self) -> None:
        self.socket.close()


@contextmanager
def deaf(address: Address, *, asks: bool = True) -> Iterator[RawPeer]:
    """A client whose session is open, and which takes no answers. asks: for tokens"""
    with closing(RawPeer(address)) as peer:
        peer.greet(window=0)
        peer.call()
        peer.send(opening().SerializeToString())
        if asks:
            peer.send(decode_to(2_000).SerializeToString())
        yield peer


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def call_headers(method: str = SESSION) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in headers.items())


def literal(text: str) -> bytes:
    """A string of HPACK (RFC 7541, 5.1 and 5.2), without Huffman coding."""
    data, length = text.encode(), len(text.encode())
    if length < 127:
        return bytes((length,)) + data
    prefix, rest = b"\x7f", length - 127
    while rest >= 128:
        prefix, rest = prefix + bytes((rest % 128 + 128,)), rest // 128
    return prefix + bytes((rest,)) + data
