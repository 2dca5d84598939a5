"""The client's connection to a target, and the sessions that share it.

The code is plain and synchronous. Every failure of the network or the target becomes an
OutriderError.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from grpc_comm import translate
from grpc_comm.client.attached_session import AttachedSession
from grpc_comm.client.call import Start
from grpc_comm.client.remote_session import Patience, RemoteSession
from grpc_comm.client.transport_pool import Ticket
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import PLAINTEXT, SecurityOptions, channel_security
from grpc_comm.tls_files import check_tls_files
from grpc_comm.translate import Description
from grpc_comm.transport import Address, channel_options, parse_address
from grpc_comm.unanswered import advice
from inference.errors import InvalidRequest, OutriderError, Unavailable

CONNECT_SECONDS = 5.0
REACH_POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
"""Seconds between checks whether either side of a session has been silent for too long."""


def connect(
    addresses: str,
    *,
    security: SecurityOptions = PLAINTEXT,
    tokenizer_fingerprint: str | None = None,
    model: str = "",
    timeout: float = CONNECT_SECONDS,
    patience: Patience = Patience(),  # noqa: B008  # frozen
) -> Connection:
    """Connect to the target at HOST:PORT, or to targets of one model at HOST:PORT,HOST:PORT,...

    tokenizer_fingerprint: of the tokenizer that is needed; None where any will do
    model: one that the target lists; empty for its first
    timeout: seconds

    Raises Unavailable when no target answers in time, and InvalidRequest for a model that is not
    listed. Raises Mismatch when the target speaks another protocol or has another tokenizer.
    """
    parsed = [parse_address(address) for address in addresses.split(",")]
    connection = Connection(parsed, security, model, timeout, patience)
    if tokenizer_fingerprint not in (None, connection.description.tokenizer_fingerprint):
        connection.close()
        raise translate.tokenizer_mismatch(str(tokenizer_fingerprint), connection.description)
    return connection


def list_models(
    addresses: str, *, security: SecurityOptions = PLAINTEXT, timeout: float = CONNECT_SECONDS
) -> list[str]:
    """Return the names of the models that the targets at HOST:PORT,HOST:PORT,... list.

    The first target's come first.
    """
    names: dict[str, None] = {}
    for address in addresses.split(","):
        channel = Channel(parse_address(address), security)
        try:
            names |= dict.fromkeys(channel.listed(timeout))
        finally:
            channel.close()
    return list(names)


class Probe(NamedTuple):
    """A sample of the link: an exchange with the target that causes it no work."""

    seconds: float
    transferred: int  # bytes, both directions together


class Channel:
    """A gRPC channel to one target. Closed channels raise Unavailable."""

    def __init__(self, address: Address, security: SecurityOptions) -> None:
        self.address, self._security = address, security
        credentials, self._metadata = channel_security(security, address)
        check_tls_files(security)
        options = channel_options(address)
        if credentials is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._stub = verifier_pb2_grpc.TargetStub(self._channel)

    def describe(self, model: str, timeout: float) -> Description:
        return translate.read_description(self._describe(model, timeout))

    def listed(self, timeout: float) -> list[str]:
        return [translate.plain(name) for name in self._describe("", timeout).models]

    def probe(self, timeout: float) -> Probe:
        start = time.perf_counter()
        message = self._describe("", timeout)
        return Probe(
            time.perf_counter() - start, pb.DescribeRequest().ByteSize() + message.ByteSize()
        )

    def _describe(self, model: str, timeout: float) -> pb.Description:
        try:
            message: pb.Description = self._stub.Describe(
                pb.DescribeRequest(model=model), timeout=timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            meaning = (
                f"{model} cannot be had at {self.address}"
                if model
                else f"no Outrider target answers at {self.address}"
            )
            raise self._failure(error, meaning) from error
        except ValueError as error:  # gRPC's word for a closed channel
            raise Unavailable(f"the connection to {self.address} is closed") from error
        return message

    def _failure(self, error: grpc.RpcError, meaning: str) -> OutriderError:
        """Return our error for a failed call, with what to do about it where that is known."""
        failure = translate.status_error(error, meaning)
        if not isinstance(failure, Unavailable):
            return failure
        known = advice(self.address, self._security)
        return Unavailable(f"{meaning}: {known}") if known else failure

    def reach(self, seconds: float, given_up: threading.Event) -> None:
        """Wait until the channel is connected, for `seconds` at most; raise Unavailable.

        Without a call that waits for it, gRPC fails other calls with its last error while it
        reconnects.
        """
        try:
            call = self._stub.Describe.future(
                pb.DescribeRequest(), timeout=seconds, metadata=self._metadata, wait_for_ready=True
            )
        except ValueError as error:  # gRPC's word for a closed channel
            raise Unavailable(f"the connection to {self.address} is closed") from error
        while not call.done():
            if given_up.wait(REACH_POLL_SECONDS):
                call.cancel()
        if call.code() is not grpc.StatusCode.OK:
            raise translate.status_error(call, f"no Outrider target answers at {self.address}")

    def session(self, messages: Iterator[pb.ClientMessage]) -> Any:
        try:
            return self._stub.Session(messages, metadata=self._metadata)
        except ValueError as error:  # gRPC's word for a closed channel
            raise Unavailable(f"the connection to {self.address} is closed") from error

    def close(self) -> None:
        self._channel.close()


class Connection:
    """Channels to targets of one model, shared by any number of sessions. A context manager.

    description: what the first target that answered says of itself

    connect() makes it.
    """

    def __init__(
        self,
        addresses: list[Address],
        security: SecurityOptions,
        model: str,
        timeout: float,
        patience: Patience,
    ) -> None:
        if len(set(addresses)) < len(addresses):
            raise InvalidRequest(f"the same target twice: {', '.join(map(str, addresses))}")
        self._patience = patience
        self._channels = [Channel(address, security) for address in addresses]
        self._sessions: weakref.WeakSet[RemoteSession | AttachedSession] = weakref.WeakSet()
        self._closed = threading.Event()
        try:
            self.description = self._describe(model, timeout)
        except OutriderError:
            self.close()
            raise
        threading.Thread(target=self._beat, name="outrider heartbeat", daemon=True).start()

    @property
    def targets(self) -> int:
        return len(self._channels)

    def address(self, index: int) -> str:
        return str(self._channels[index % self.targets].address)

    def start(self, index: int) -> Start:
        return self._channels[index % self.targets].session

    def reach(self, index: int, seconds: float, given_up: threading.Event) -> None:
        self._channels[index % self.targets].reach(seconds, given_up)

    def probe(self, timeout: float = CONNECT_SECONDS) -> Probe:
        """Exchange a message without work with the first target: a sample of the link.

        Raises Unavailable when it does not answer within `timeout` seconds.
        """
        return self._channels[0].probe(timeout)

    def session(self) -> RemoteSession:
        """Return a session. It takes no row before open()."""
        session = RemoteSession(self, self._patience)
        self._sessions.add(session)
        return session

    def attached(self, ticket: Ticket) -> AttachedSession:
        """Return a second device's part of a session.

        Another connection opened that session at the first of these targets, and issued the ticket.
        """
        session = AttachedSession(self, ticket)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """End every session on this connection. Idempotent."""
        self._closed.set()
        for session in list(self._sessions):
            session.abandon()
        for channel in self._channels:
            channel.close()

    def _describe(self, model: str, timeout: float) -> Description:
        """Return the description of the first target that answers, and move that target to the
        front.
        """
        for channel in list(self._channels):
            try:
                return channel.describe(model, timeout)
            except Unavailable as error:
                reason = error
                self._channels.append(self._channels.pop(0))
        raise reason

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            for session in list(self._sessions):
                session.tick()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
