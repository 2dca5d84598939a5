"""One client's stream at the target, from its first message to its end.

The session may outlive the stream. One task reads the client's messages, another task writes the
target's messages (sender.py); neither waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import grpc.aio
from prometheus_client import Counter

from grpc_comm import messages, translate
from grpc_comm.keys import Grant, Key
from grpc_comm.observability.metrics import Ending
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import sender
from grpc_comm.server.sender import Send, Sender
from grpc_comm.server.session_table import SessionRecord
from grpc_comm.server.state import ServerState
from grpc_comm.server.tasks import cancel, mark_retrieved
from grpc_comm.translate import SessionTerms
from inference.engine.engine import Engine
from inference.errors import Gone, InvalidRequest, LimitExceeded, Mismatch, OutriderError
from inference.order import Opened
from inference.sampling import SamplingParams
from inference.token_rule import TokenRule
from inference.tree.candidates import ProposalStream

BREAK_SECONDS = 0.1
"""Maximum seconds between the end of a broken call's messages and gRPC's cancellation."""


class Inbox:
    """A client's messages, read one at a time. gRPC makes the sender wait while none is read."""

    def __init__(self, requests: AsyncIterator[pb.ClientMessage], received: Counter) -> None:
        """received: counts the received bytes"""
        self._requests, self._received = requests, received
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def take(self) -> pb.ClientMessage | None:
        """Return the next message; None after the client's last message.

        Raises InvalidRequest for a message that CallGuard refuses.
        """
        self._waiting_since = self._loop.time()
        message = await anext(self._requests, None)
        self._waiting_since = None
        if message is not None:
            self._received.inc(message.ByteSize())
        return message

    async def silence(self, seconds: float) -> None:
        """Wait until no message has arrived for this many seconds, then raise Gone."""
        while True:
            since, now = self._waiting_since, self._loop.time()
            if since is not None and now - since >= seconds:
                raise Gone(f"no message for {seconds:g} s: the client counts as disconnected")
            await asyncio.sleep(seconds - (now - since) if since is not None else seconds)


T = TypeVar("T")

_NOTHING_NEW = Opened()


class Stream:
    """Reads a client's messages, while its Sender writes the target's messages."""

    def __init__(
        self,
        state: ServerState,
        grant: Grant,
        requests: AsyncIterator[pb.ClientMessage],
        write: Send,
    ) -> None:
        self._grant, self._applied = grant, grant.key
        self._state, self._write = state, write
        self._inbox = Inbox(requests, state.metrics.bytes_up)
        self._sessions, self._dropped = state.sessions, state.metrics.dropped
        self._record: SessionRecord | None = None
        self._sender: Sender | None = None
        self._writing: asyncio.Future[Any] | None = None  # the last message

    @property
    def key(self) -> Key:
        """The caller's key with its current limits."""
        return self._grant.key

    async def serve(self) -> None:
        """Serve until the client is done. An error that this raises becomes the call's status."""
        silence = self._inbox.silence(self._sessions.lease_seconds)
        try:
            await _first_of(self._admit(), silence)
        finally:  # gRPC does not accept a status while a message is being written
            if self._writing is not None:
                await asyncio.wait({self._writing})

    async def _admit(self) -> None:
        first = await self._inbox.take()
        if first is None:
            return await asyncio.sleep(BREAK_SECONDS)
        self._state.check_draining()
        match first.WhichOneof("kind"):
            case "open":
                record, opening = await self._open(first.open)
                await self._own(record, record.session.length, opening)
            case "resume":
                await self._own(self._resume(first.resume), first.resume.length, None)
            case _:
                raise InvalidRequest("the first message must be Open or Resume")

    def go_away(self, reason: str, retry_after: float) -> None:
        """Ask the client to leave after it has received the tokens of the current forward pass."""
        if self._sender is not None:
            self._sender.ask_to_leave(pb.GoAway(reason=reason, retry_after_seconds=retry_after))

    # The two ways to begin a session: Open and Resume.

    async def _open(self, request: pb.Open) -> tuple[SessionRecord, Future[Opened]]:
        params, prompt = translate.read_params(request), list(request.prompt)
        model = await self._state.catalogue.model(request.model)
        description = self._state.limited(model.description, self.key)
        translate.check_fingerprints(request, description)
        translate.check_prompt(len(prompt), params, description.sequence_length)  # cheapest first
        engine, rule = model.engine, None
        if params.adjusts:
            make = self._rule(engine, prompt, params)
            rule = await self._with_heartbeats(engine, len(prompt), make)
        self._state.check_room(self.key)
        self._sessions.check_name(request.session_id, self.key.name)
        session, opening = engine.open(
            prompt,
            params,
            rule=rule,
            tenant=self.key.name,
            sharing=self._state.prefix_tenant(self.key),
            limit=description.sequence_length,
        )
        record = SessionRecord(request.session_id, session, model)
        self._sessions.add(record)
        self._set_limits(record)
        return record, opening

    async def _rule(
        self, engine: Engine, prompt: Sequence[int], params: SamplingParams
    ) -> TokenRule | None:
        turns, rules = self._state.rules, engine.rules
        if not rules.has_checked(params):
            await turns.check(self.key, partial(rules.check, params), engine.max_sessions)
        return await turns.make(partial(rules.make, prompt, params))

    async def _with_heartbeats(self, engine: Engine, length: int, work: Awaitable[T]) -> T:
        """Wait for work, and send heartbeats meanwhile. length: tokens that the client has"""
        working = asyncio.ensure_future(work)
        working.add_done_callback(mark_retrieved)
        try:
            while not (await asyncio.wait({working}, timeout=sender.HEARTBEAT_SECONDS))[0]:
                self._state.check_draining()
                if not sender.is_hung(engine):
                    await self._send(pb.ServerMessage(tokens=pb.Tokens(position=length)))
        finally:
            working.cancel()
        return await working

    def _resume(self, request: pb.Resume) -> SessionRecord:
        translate.check_protocol(request.protocol_version)
        record = self._sessions.resume(
            request.session_id, request.resume_key, request.epoch, self.key.name
        )
        self._set_limits(record)
        return record

    # The following methods serve a session.

    async def _own(
        self, record: SessionRecord, length: int, opening: Future[Opened] | None
    ) -> None:
        """Serve the session until its client is done, or another stream takes over the session."""
        epoch = record.epoch
        ending: Ending | None = Ending.FAILED
        resumable = opening is None  # whether the client can resume the session
        try:
            _check_length(length, record)
            record.engine.acknowledge(record.session, length)
            self._record, stream = record, record.stream
            writer = Sender(record.engine, record.session, stream, length, self._send)
            self._sender = writer

            async def speak() -> None:
                nonlocal resumable
                opened = _NOTHING_NEW
                if opening is not None:
                    prefilled = asyncio.wrap_future(opening)
                    prefilled.add_done_callback(mark_retrieved)
                    waiting = asyncio.shield(prefilled)  # never cancel the engine's future
                    opened = await self._with_heartbeats(record.engine, length, waiting)
                resumable = True
                await writer.run(self._opened(record, opened))

            reading = self._read(record, stream)
            await _first_of(reading, speak(), _until_superseded(record.superseded))
            ending = Ending.DRAINED if writer.drained else Ending.CLOSED
        except (asyncio.CancelledError, Gone):  # the call broke, or the client has gone
            if self._grant.withdrawn:
                ending = Ending.REFUSED
            elif resumable:
                ending = None  # the session waits for a new stream
            raise
        except OutriderError:
            ending = Ending.REFUSED
            raise
        finally:
            if record.epoch != epoch:
                pass  # the session belongs to another stream now
            elif ending is None:
                self._sessions.detach(record)
            else:
                self._sessions.end(record, ending)

    def _opened(self, record: SessionRecord, opened: Opened) -> SessionTerms:
        session, length = record.session, record.session.length
        if opened is not _NOTHING_NEW:
            length = session.prompt_length  # later tokens are sent as Tokens
            record.observer.record_opened(session, opened)
        return SessionTerms(
            session_id=record.session_id,
            length=length,
            lease_seconds=self._sessions.lease_seconds,
            tree_nodes=session.tree_nodes or record.engine.max_tree_nodes,
            resume_key=record.resume_key,
            opened=opened,
        )

    # The following methods read the client's messages.

    async def _read(self, record: SessionRecord, stream: ProposalStream) -> None:
        while (message := await self._inbox.take()) is not None:
            if message.HasField("close"):
                return
            self._apply_limits(record)
            early = self._state.charge(self.key, message)
            if early > 0 and message.HasField("nodes"):
                self._dropped["rate"].inc(len(message.nodes.tokens))
            else:
                self._handle(record, stream, message)
            if early > 0:
                await asyncio.sleep(early)
        await asyncio.sleep(BREAK_SECONDS)

    def _handle(
        self, record: SessionRecord, stream: ProposalStream, message: pb.ClientMessage
    ) -> None:
        """Apply a message; raise InvalidRequest or LimitExceeded if it is invalid."""
        engine, session = record.engine, record.session
        match message.WhichOneof("kind"):
            case "nodes":
                late, shed = engine.append(session, stream, messages.read_nodes(message.nodes))
                self._dropped["late"].inc(late)
                self._dropped["cap"].inc(shed)
            case "ack":
                engine.acknowledge(session, message.ack.length)
            case "decode":
                engine.decode(session, messages.read_decode(message.decode))
            case "go":
                engine.go(session, message.go.base)
            case "heartbeat":
                pass
            case "open" | "resume":
                raise InvalidRequest(
                    "Open was sent twice: a stream opens one session; open another on its own "
                    "stream"
                )
            case _:
                raise InvalidRequest("an empty message, or one of a kind unknown to this target")

    def _apply_limits(self, record: SessionRecord) -> None:
        """Apply the key's current limits if they have changed. Raises LimitExceeded if the session
        exceeds them.
        """
        if self.key is self._applied:
            return
        self._set_limits(record)
        length, limit = record.session.length, record.session.limit
        if length > limit:
            raise LimitExceeded(f"{length} tokens: this key's limit is now {limit} in a session")
        self._sessions.check_count(record, self.key.sessions)

    def _set_limits(self, record: SessionRecord) -> None:
        self._applied = key = self.key
        record.engine.set_limits(record.session, key.tree_nodes, key.sequence_length)

    async def _send(self, message: pb.ServerMessage) -> None:
        """Write a message; raise Gone if the client has gone. The write continues even if the
        caller is cancelled.
        """
        if self._record is not None:
            self._apply_limits(self._record)
        self._state.metrics.bytes_down.inc(message.ByteSize())
        writing = self._writing = asyncio.ensure_future(self._write(message))
        writing.add_done_callback(mark_retrieved)
        await asyncio.wait({writing}, timeout=self._sessions.lease_seconds)
        failure = writing.exception() if writing.done() and not writing.cancelled() else None
        if failure is not None and not isinstance(failure, grpc.aio.BaseError):
            raise failure
        if failure is not None or not writing.done():
            raise Gone("the client has gone, or does not read") from failure


def _check_length(length: int, record: SessionRecord) -> None:
    """Raise Mismatch if the client has fewer tokens than the prompt, or more than exist."""
    session = record.session
    if not session.prompt_length <= length <= session.length:
        raise Mismatch(
            f"the client counts {length} tokens, the target {session.length}, of which "
            f"{session.prompt_length} were the prompt"
        )


async def _until_superseded(ended: asyncio.Event) -> None:
    await ended.wait()
    raise Mismatch("another stream has resumed this session, or it was ended")


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all works until one has ended, cancel the others, and raise any error of the first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    for task in tasks:
        task.add_done_callback(mark_retrieved)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        await cancel(*tasks)
    for task in ended:
        task.result()
