"""The client's connection to a target, and the sessions that share it.

The code is plain and synchronous. Every failure of the network or the target becomes an
OutriderError.
"""

from __future__ import annotations

import threading
import weakref

from grpc_comm import translate
from grpc_comm.client.call import Channel, Probe, Ticket
from grpc_comm.client.remote_session import Patience, RemoteSession
from grpc_comm.client.wire_session import AttachedSession
from grpc_comm.security import PLAINTEXT, SecurityOptions
from grpc_comm.translate import Description
from grpc_comm.transport import Address, parse_address
from inference.errors import InvalidRequest, OutriderError, Unavailable

CONNECT_SECONDS = 5.0
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
    def address(self) -> str:
        """Where the first target is."""
        return str(self._channels[0].address)

    def probe(self, timeout: float = CONNECT_SECONDS) -> Probe:
        """Exchange a message without work with the first target: a sample of the link.

        Raises Unavailable when it does not answer within `timeout` seconds.
        """
        return self._channels[0].probe(timeout)

    def session(self) -> RemoteSession:
        """Return a session. It takes no row before open()."""
        session = RemoteSession(self._channels, self.description, self._patience)
        self._sessions.add(session)
        return session

    def attached(self, ticket: Ticket) -> AttachedSession:
        """Return a second device's part of a session.

        Another connection opened that session at the first of these targets, and issued the ticket.
        """
        session = AttachedSession(self._channels[0], self.description, ticket)
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

    def __exit__(self, *_: object) -> None:
        self.close()
