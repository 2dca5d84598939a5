"""The client's connection to a target, and the sessions that share it.

All functions are synchronous. Every failure of the network or the target is an OutriderError.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
import weakref

from grpc_comm import translate
from grpc_comm.client.channel import Channel
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.client.replicas import Replicas
from grpc_comm.security import PLAINTEXT, SecurityOptions
from grpc_comm.transport import parse_endpoint
from inference.errors import Mismatch

CONNECT_SECONDS = 5.0
SETTINGS_SECONDS = 60.0
"""Timeout in seconds for fetching tokenizer settings: up to 3 MiB, also over slow links."""
HEARTBEAT_SECONDS = 1.0
"""Seconds between checks whether client or target has been silent for too long."""


def connect(
    addresses: str,
    *,
    security: SecurityOptions = PLAINTEXT,
    tokenizer_fingerprint: str | None = None,
    model: str = "",
    timeout: float = CONNECT_SECONDS,
    patience: Patience = Patience(),  # noqa: B008  # frozen
) -> Connection:
    """Connect to the target at HOST:PORT, or to its replicas.

    addresses: HOST:PORT, or several: A,B; dns:///HOST:PORT: a replica at each address of the host
    tokenizer_fingerprint: fingerprint of the required tokenizer; None for any tokenizer
    model: name of a model that the target lists; empty for the first one
    timeout: seconds to wait for the target's answer
    patience: how long to retry a target that does not answer, now or later

    Raises Unavailable if no target answers in time, and InvalidRequest for a model that is not
    listed. Raises Mismatch if the target has another protocol or another tokenizer, and
    if two replicas are different targets.
    """
    endpoints = [parse_endpoint(address) for address in addresses.split(",")]
    connection = Connection(Replicas(endpoints, security, model, timeout, patience), patience)
    if tokenizer_fingerprint not in (None, connection.description.tokenizer_fingerprint):
        connection.close()
        raise translate.tokenizer_mismatch(str(tokenizer_fingerprint), connection.description)
    return connection


def list_models(addresses: str, *, security: SecurityOptions = PLAINTEXT) -> list[str]:
    """Return the names of the models that the targets at HOST:PORT,HOST:PORT,... list.

    The models of the first target come first.
    """
    names: dict[str, None] = {}
    for endpoint in map(parse_endpoint, addresses.split(",")):
        name = endpoint.address.host if endpoint.resolved else ""
        channel = Channel(endpoint.address, security, name)
        try:
            names |= dict.fromkeys(channel.list_models(CONNECT_SECONDS))
        finally:
            channel.close()
    return list(names)


class Connection:
    """A connection to a target's replicas, shared by any number of sessions. A context manager.

    description: the target's description of itself

    Created by connect().
    """

    def __init__(self, replicas: Replicas, patience: Patience) -> None:
        self._replicas, self._patience = replicas, patience
        self.description = replicas.description
        # sessions in order of opening, so that iteration is deterministic
        self._sessions = weakref.WeakKeyDictionary[RemoteSession, None]()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="outrider heartbeat", daemon=True).start()

    @property
    def address(self) -> str:
        """The address of the replica that answered first."""
        return str(self._replicas.met.address)

    def probe(self, timeout: float = CONNECT_SECONDS) -> float:
        """Return the seconds of a round trip to `address`, for which the replica does no work.

        Raises Unavailable if the replica does not answer within `timeout` seconds.
        """
        return self._replicas.met.probe(timeout)

    def tokenizer_settings(self, timeout: float = SETTINGS_SECONDS) -> bytes:
        """Fetch the settings of the target's tokenizer, and check description.settings_digest.

        Raises Unavailable, and Mismatch if the digest differs.
        """
        content = self._replicas.met.tokenizer_settings(self.description.model, timeout)
        if hashlib.sha256(content).hexdigest() != self.description.settings_digest:
            raise Mismatch(f"{self.address} sent tokenizer settings that differ from its digest")
        return content

    def check(self, timeout: float) -> None:
        """Raise Unavailable unless a replica reports within `timeout` seconds that it serves."""
        self._replicas.order("")[0].check_health(timeout)

    def session(self, key: str = "") -> RemoteSession:
        """Return a new session, which takes a row only when it is opened.

        key: sessions with the same key go to the same replica, which may have cached prefixes of
        their prompts; empty for any replica
        """
        key = key or uuid.uuid4().hex
        session = RemoteSession(self._replicas, key, self.description, self._patience)
        self._sessions[session] = None
        return session

    def close(self) -> None:
        """End every session on this connection. Idempotent."""
        self._closed.set()
        for session in list(self._sessions):
            session.abandon()
        self._replicas.close()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            for session in list(self._sessions):
                session.tick()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
