"""One client's stream at the target, from its first message to its end.

The session may outlive the stream. One task reads what the client says, another writes what the
target says (sender.py); neither waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import grpc.aio

from grpc_comm import messages, translate
from grpc_comm.keys import Grant, Key
from grpc_comm.observability.events import (
    CandidatesDropped,
    Drop,
    Ending,
    MessageSent,
    SessionOpened,
)
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.parse_errors import BREAK_SECONDS
from grpc_comm.server.request_reader import Inbox
from grpc_comm.server.sender import Send, Sender
from grpc_comm.server.session_table import Held
from grpc_comm.server.state import ServerState
from grpc_comm.translate import SessionTerms
from inference.errors import (
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.order import Opened

_NOTHING_NEW = Opened(0, 0.0, 0.0)
_CANCEL_SECONDS = 0.05


class Stream:
    """Reads a client's messages; its Sender writes the target's."""

    def __init__(self, state: ServerState, grant: Grant, inbox: Inbox, write: Send) -> None:
        self._grant, self._heeded = grant, grant.key
        self._state, self._inbox, self._write = state, inbox, write
        self._leases = state.leases
        self._held: Held | None = None
        self._sender: Sender | None = None
        self._writing: asyncio.Future[Any] | None = None  # the last message

    @property
    def key(self) -> Key:
        """The caller's key with its present limits."""
        return self._grant.key

    async def serve(self) -> None:
        """Serve until the client is done; raise the error that becomes the call's status."""
        first = await self._inbox.first(self._leases.lease_seconds)
        if first is None:
            await asyncio.sleep(BREAK_SECONDS)
            return
        try:
            await self._admit(first)
        finally:  # gRPC takes no status while a message is on its way
            if self._writing is not None:
                await asyncio.wait({self._writing})

    async def _admit(self, first: pb.ClientMessage) -> None:
        kind = first.WhichOneof("kind")
        if kind not in ("open", "resume"):
            raise InvalidRequest("Open or Resume must come first")
        if self._state.draining:
            raise Unavailable("this target is about to end")
        if kind == "open":
            held, opening = await self._open(first.open)
            await self._own(held, held.session.length, opening)
        else:
            await self._own(self._resume(first.resume), first.resume.length, None)

    def go_away(self, reason: str, retry_after: float) -> None:
        """Ask the client to leave once it has what the forward in hand brings."""
        if self._sender is not None:
            self._sender.leave(pb.GoAway(reason=reason, retry_after_seconds=retry_after))

    # The two ways to begin: Open and Resume.

    async def _open(self, message: pb.Open) -> tuple[Held, Future[Opened]]:
        served = await self._state.catalogue.served(message.model)
        description = self._state.limited(served.description, self.key)
        translate.check_fingerprints(message, description)
        params = translate.read_params(message)
        if len(message.prompt) >= description.sequence_length:  # first, as it is cheap
            raise LimitExceeded(
                f"a prompt of {len(message.prompt)} tokens leaves no room: the sequence length is "
                f"{description.sequence_length}"
            )
        self._state.check_room(self.key)
        self._leases.check_name(message.session_id, self.key.name)
        session, opening = served.engine.open(
            list(message.prompt),
            params,
            tenant=self.key.name,
            sharing=self._state.prefix_tenant(self.key),
            limit=description.sequence_length,
        )
        held = Held(message.session_id, self.key.name, served.engine, session)
        self._leases.add(held)
        self._keep_to_limits(held)
        return held, opening

    def _resume(self, message: pb.Resume) -> Held:
        translate.check_protocol(message.protocol_version)
        held = self._leases.resume(
            message.session_id, message.resume_key, message.epoch, self.key.name
        )
        self._keep_to_limits(held)
        return held

    # Serving a session.

    async def _own(self, held: Held, length: int, opening: Future[Opened] | None) -> None:
        """Serve the session until its client is done, or another stream takes it over."""
        epoch = held.epoch
        ending: Ending | None = Ending.FAILED
        known = opening is None  # the client knows of the session and can come back for it
        try:
            _check_length(length, held)
            held.engine.acknowledge(held.session, length)
            sender = self._start(held, length)

            async def speak() -> None:
                nonlocal known
                opened = await sender.until_open(opening) if opening else _NOTHING_NEW
                known = True
                await sender.run(self._opened(held, opened))

            read = self._read(held, held.stream)
            await self._while_heard(read, speak(), _fence(held.superseded))
            ending = Ending.DRAINED if sender.drained else Ending.CLOSED
        except (asyncio.CancelledError, Gone):  # the call broke, or nobody is there
            if self._grant.withdrawn:
                ending = Ending.REFUSED
            elif known:
                ending = None  # the session waits for another stream
            raise
        except OutriderError:
            ending = Ending.REFUSED
            raise
        finally:
            if held.epoch != epoch:
                pass  # another stream has it now
            elif ending is None:
                self._leases.leave(held)
            else:
                self._leases.end(held, ending)

    def _start(self, held: Held, length: int) -> Sender:
        self._held = held
        on_loop = self._state.wakeups.on_loop
        engine, session = held.engine, held.session
        self._sender = Sender(engine, session, held.stream, length, self._send, on_loop)
        return self._sender

    def _opened(self, held: Held, opened: Opened) -> pb.Opened:
        session, length = held.session, held.session.length
        if opened is not _NOTHING_NEW:
            length = session.prompt_length  # later tokens are sent as Tokens
            self._state.emit(SessionOpened(session, held.session_id, self.key.name))
        return translate.write_opened(held.session_id, length, opened, self._terms(held))

    def _terms(self, held: Held) -> SessionTerms:
        nodes = held.session.tree_nodes or held.engine.max_tree_nodes
        return SessionTerms(self._leases.lease_seconds, nodes, held.resume_key)

    # Reading what the client says.

    async def _read(self, held: Held, stream: int) -> None:
        """Follow the client's messages until there are no more."""
        while (message := await self._inbox.take()) is not None:
            kind = message.WhichOneof("kind")
            if kind == "close":
                return
            self._heed(held)
            early = self._state.charge(self.key, message)
            if early == 0 or kind != "nodes":
                self._obey(held, stream, kind, message)
            else:
                self._state.emit(CandidatesDropped(len(message.nodes.tokens), Drop.RATE))
            if early > 0:
                await asyncio.sleep(early)
        await asyncio.sleep(BREAK_SECONDS)

    def _obey(self, held: Held, stream: int, kind: str | None, message: pb.ClientMessage) -> None:
        engine, session = held.engine, held.session
        if kind == "nodes":
            late, shed = engine.append(session, stream, messages.read_nodes(message.nodes))
            if late:
                self._state.emit(CandidatesDropped(late, Drop.LATE))
            if shed:
                self._state.emit(CandidatesDropped(shed, Drop.CAP))
        elif kind == "ack":
            engine.acknowledge(session, message.ack.length)
        elif kind == "decode":
            engine.decode(session, messages.read_decode(message.decode))
        elif kind == "go":
            engine.go(session, message.go.base)
        elif kind in ("open", "resume"):
            raise InvalidRequest(
                "Open came twice: a session is opened once, another one has its own stream"
            )
        elif kind != "heartbeat":
            raise InvalidRequest(
                "an empty message, or one of a kind that this target does not know"
            )

    def _heed(self, held: Held) -> None:
        """Apply the key's present limits if they have changed. Raises LimitExceeded where they
        are exceeded.
        """
        if self.key is self._heeded:
            return
        self._keep_to_limits(held)
        length, limit = held.session.length, held.session.limit
        if length > limit:
            raise LimitExceeded(f"{length} tokens: this key may have {limit} in a session now")
        self._leases.check_place(held, self.key.sessions)

    def _keep_to_limits(self, held: Held) -> None:
        self._heeded = key = self.key
        nodes, length = held.engine.max_tree_nodes, held.engine.sequence_length
        held.session.tree_nodes = min(nodes, key.tree_nodes or nodes)
        held.session.limit = min(length, key.sequence_length or length)

    async def _while_heard(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run all works until the first has ended, or the client has been silent for too long."""
        await _first_of(*works, self._inbox.silence(self._leases.lease_seconds))

    async def _send(self, message: pb.ServerMessage) -> None:
        """Write a message; raise Gone when nobody reads. A write in progress outlives its
        caller.
        """
        if self._held is not None:
            self._heed(self._held)
        self._state.emit(MessageSent(message.ByteSize()))
        writing = self._writing = asyncio.ensure_future(self._write(message))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at
        await asyncio.wait({writing}, timeout=self._leases.lease_seconds)
        failure = writing.exception() if writing.done() and not writing.cancelled() else None
        if failure is not None and not isinstance(failure, grpc.aio.BaseError):
            raise failure
        if failure is not None or not writing.done():
            raise Gone("the client has gone, or reads nothing") from failure


def _check_length(length: int, held: Held) -> None:
    """Raise Mismatch unless the client has at least the prompt, and at most the session's
    tokens.
    """
    session = held.session
    if not session.prompt_length <= length <= session.length:
        raise Mismatch(
            f"the client counts {length} tokens, the target {session.length}, of which "
            f"{session.prompt_length} were the prompt"
        )


async def _fence(ended: asyncio.Event) -> None:
    await ended.wait()
    raise Mismatch("another stream has resumed this session, or it was ended")


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all works until one has ended, and raise what it raises. The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    for task in tasks:  # looked at here, also where this one is cancelled while others end
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    ended: set[asyncio.Task[None]] = set()
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pending = set(tasks) - ended
        while pending:
            for task in pending:
                task.cancel()  # again: asyncio.wait_for() may swallow a cancellation
            _, pending = await asyncio.wait(pending, timeout=_CANCEL_SECONDS)
    for task in ended:
        task.result()
