"""The target's side of the wire: one Stream for each client's session, over an engine that all of them share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from grpc_comm import translate
from grpc_comm.admission import ModelThread, Rows
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.translate import Description
from inference.engine import Engine, TargetSession
from inference.errors import InvalidRequest, Mismatch, OutriderError

log = logging.getLogger(__name__)

Send = Callable[[pb.ServerMessage], Awaitable[None]]


class TargetService(verifier_pb2_grpc.TargetServicer):
    """Serves one engine to many sessions; what goes wrong in one ends that one, with a status in the user's terms."""

    def __init__(self, engine: Engine, description: Description, model: ModelThread, *, waiting: int) -> None:
        self.engine, self.description, self.model = engine, description, model
        self.rows = Rows(engine, model, waiting)

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.Description]) -> pb.Description:
        return translate.write_description(self.description)

    async def Session(self, requests: AsyncIterator[pb.ClientMessage], context: grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]) -> None:
        inbox = Inbox(requests)
        try:
            await Stream(self, inbox, context.write).serve()
        except OutriderError as error:
            await context.abort(translate.status_code(error), str(error))
        except Exception as error:  # the one place where a session's internal fault becomes a status, so that the others go on
            log.exception("a session failed")
            await context.abort(grpc.StatusCode.INTERNAL, f"{translate.FAULT}: {type(error).__name__}")
        finally:
            inbox.close()


class Inbox:
    """A client's messages, read one ahead, so that a Close is seen while the target is busy."""

    def __init__(self, requests: AsyncIterator[pb.ClientMessage]) -> None:
        self._requests = requests
        self._next = self._read_ahead()

    async def take(self) -> pb.ClientMessage | None:
        """The next message; None when the client has no more. Raises InvalidRequest for bytes that are not a message."""
        try:
            message = await self._next
        except DecodeError as error:
            raise InvalidRequest("a message that cannot be read: the client does not speak this protocol") from error
        self._next = self._read_ahead()
        return message

    @property
    def closing(self) -> bool:
        """The client's next message is here, and it is Close."""
        if not self._next.done() or self._next.cancelled() or self._next.exception() is not None:
            return False
        message = self._next.result()
        return message is not None and message.WhichOneof("kind") == "close"

    def close(self) -> None:
        self._next.cancel()

    def _read_ahead(self) -> asyncio.Task[pb.ClientMessage | None]:
        async def read() -> pb.ClientMessage | None:
            return await anext(self._requests, None)

        task = asyncio.create_task(read())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at here, raised by take()
        return task


class Stream:
    """One session, from Open to its end."""

    def __init__(self, service: TargetService, inbox: Inbox, send: Send) -> None:
        self._service, self._inbox, self._send = service, inbox, send
        self._rounds = 0

    async def serve(self) -> None:
        """Returns when the client is done; raises what its status shall be."""
        first = await self._inbox.take()
        if first is None:
            return
        if first.WhichOneof("kind") != "open":
            raise InvalidRequest("Open must come first")
        opening = first.open
        translate.check_fingerprints(opening, self._service.description)
        params = translate.read_params(opening)
        self._service.engine.check(opening.prompt)
        asked = time.perf_counter()
        async with self._service.rows.lend(list(opening.prompt), params) as target:
            prefill_seconds = await self._prefill(target)
            queue_seconds = time.perf_counter() - asked - prefill_seconds
            opened = pb.Opened(session_id=opening.session_id, length=target.length, queue_seconds=queue_seconds, prefill_seconds=prefill_seconds)
            await self._send(pb.ServerMessage(opened=opened))
            while (message := await self._inbox.take()) is not None and message.WhichOneof("kind") != "close":
                await self._answer(target, message)

    async def _prefill(self, target: TargetSession) -> float:
        """Seconds on the model, over all chunks."""
        seconds, more = 0.0, True
        chunks = target.prefill()
        while more:
            step = await self._service.model.submit(lambda: next((True for _ in chunks), False))
            seconds, more = seconds + step.model_seconds, step.value
        return seconds

    async def _answer(self, target: TargetSession, message: pb.ClientMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "round":
            await self._round(target, message.round)
        elif kind == "generate":
            await self._generate(target, message.generate)
        elif kind == "open":
            raise InvalidRequest("Open came twice: a session is opened once, another one has its own stream")
        else:
            raise InvalidRequest("an empty message, or one of a kind that this target does not know")

    async def _round(self, target: TargetSession, message: pb.Round) -> None:
        if message.number != self._rounds:
            raise Mismatch(f"round {message.number} came when round {self._rounds} was due")
        if message.base_length != target.length:
            raise Mismatch(f"the client counts {message.base_length} committed tokens, the target {target.length}")
        tree = translate.read_tree(message, self._service.engine.max_tree_nodes)
        step = await self._service.model.submit(lambda: target.verify(tree))
        self._rounds += 1
        verdict = translate.write_verdict(message.number, step.value, step.queue_seconds, step.model_seconds)
        await self._send(pb.ServerMessage(verdict=verdict))

    async def _generate(self, target: TargetSession, message: pb.Continue) -> None:
        if message.max_tokens < 1:
            raise InvalidRequest("max_tokens must be 1 or more: got 0")
        stop_ids = frozenset(message.stop_ids)
        for left in reversed(range(message.max_tokens)):
            step = await self._service.model.submit(target.step)
            last = left == 0 or step.value in stop_ids
            await self._send(pb.ServerMessage(tokens=translate.write_token(step.value, last, step.queue_seconds, step.model_seconds)))
            if last or self._inbox.closing:
                return
