"""One client's stream at the target, from Open or Resume to its end. The session may outlive it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc.aio

from grpc_comm import translate
from grpc_comm.beside import Continuation, asked_policy
from grpc_comm.feed import Feed
from grpc_comm.inbox import Inbox
from grpc_comm.keys import Key
from grpc_comm.leases import Asked, Held
from grpc_comm.observer import Ending
from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import (
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.session import Answer, Opened
from inference.tree import TokenTree

if TYPE_CHECKING:
    from grpc_comm.service import TargetService

Send = Callable[[pb.ServerMessage], Awaitable[None]]

BREAK_SECONDS = 0.1
"""Of a call that breaks, gRPC may say that its messages have ended so long before it cancels the call."""


class Stream:
    """Reads a client's messages and answers them one by one."""

    def __init__(self, service: TargetService, key: Key, inbox: Inbox, send: Send) -> None:
        self.key = key
        self._service, self._inbox, self._write = service, inbox, send
        self._leases = service.leases
        self._writing = asyncio.Lock()  # GoAway comes from another task
        self._max_tree_nodes, self._epoch = 0, 0

    async def serve(self) -> None:
        """Returns when the client is done; raises what its status shall be."""
        first = await self._inbox.take(self._leases.lease_seconds)
        if first is None:
            return
        kind = first.WhichOneof("kind")
        if kind not in ("open", "resume"):
            raise InvalidRequest("Open or Resume must come first")
        if self._service.draining:
            raise Unavailable("this target is about to end")
        held, opened = (
            await self._open(first.open)
            if kind == "open"
            else (self._resume(first.resume), Opened(0, 0.0, 0.0))
        )
        self._epoch, superseded = held.epoch, held.superseded
        ending: Ending | None = Ending.FAILED
        try:
            await self._send(pb.ServerMessage(opened=self._opened(held, opened)))
            while (
                message := await self._inbox.take(self._leases.lease_seconds, superseded)
            ) is not None:
                if message.WhichOneof("kind") == "close":
                    break
                await self._answer(held, message)
            if message is None:
                await asyncio.sleep(BREAK_SECONDS)
            ending = Ending.CLOSED
        except (
            asyncio.CancelledError,
            Gone,
        ):  # the call broke, or nobody is there: the session waits for another
            ending = None
            raise
        except OutriderError:
            ending = Ending.REFUSED
            raise
        finally:
            if held.epoch != self._epoch:
                pass  # it is another stream's
            elif ending is None:
                self._leases.leave(held)
            else:
                self._leases.end(held, ending)

    async def go_away(self, reason: str, retry_after: float) -> None:
        await self._send(
            pb.ServerMessage(go_away=pb.GoAway(reason=reason, retry_after_seconds=retry_after))
        )

    async def _open(self, message: pb.Open) -> tuple[Held, Opened]:
        served = await self._service.catalogue.served(message.model)
        description = self._service.limited(served.description, self.key)
        translate.check_fingerprints(message, description)
        params = translate.read_params(message)
        if len(message.prompt) >= description.sequence_length:  # before so many ids are looked at
            raise LimitExceeded(
                f"a prompt of {len(message.prompt)} tokens leaves no room: the sequence length is {description.sequence_length}"
            )
        self._max_tree_nodes = description.max_tree_nodes
        self._service.check_room(self.key)
        self._leases.check_name(message.session_id, self.key.name)
        tenant = self._service.prefix_tenant(self.key)
        session, future = served.engine.open(
            list(message.prompt), params, tenant=tenant, limit=description.sequence_length
        )
        held = Held(message.session_id, self.key.name, served.engine, session, served.drafts)
        self._leases.add(held)
        opened: Opened | None = None
        try:
            opened = await asyncio.wrap_future(future)
        finally:
            if opened is None:  # nobody can resume it
                self._leases.end(held, Ending.FAILED)
        self._service.observer.session_opened(session, message.session_id, self.key.name)
        return held, opened

    def _resume(self, message: pb.Resume) -> Held:
        translate.check_protocol(message.protocol_version)
        held = self._leases.resume(
            message.session_id, message.resume_key, message.epoch, self.key.name
        )
        limit = self.key.tree_nodes or held.engine.max_tree_nodes
        self._max_tree_nodes = min(limit, held.engine.max_tree_nodes)
        return held

    def _opened(self, held: Held, opened: Opened) -> pb.Opened:
        seconds = self._leases.lease_seconds
        return translate.write_opened(
            held.session_id,
            held.session.length,
            opened,
            held.resume_key,
            seconds,
            held.rounds,
            self._max_tree_nodes,
        )

    async def _answer(self, held: Held, message: pb.ClientMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "round":
            await self._round(held, message.round)
        elif kind == "generate":
            await self._generate(held, message.generate)
        elif kind in ("open", "resume"):
            raise InvalidRequest(
                "Open came twice: a session is opened once, another one has its own stream"
            )
        elif kind not in ("heartbeat", "halt"):
            raise InvalidRequest(
                "an empty message, or one of a kind that this target does not know"
            )

    async def _round(self, held: Held, message: pb.Round) -> None:
        tree = translate.read_tree(message, self._max_tree_nodes)
        if message.ahead and await self._is_dead(held, message):
            return
        asked = held.last
        if asked is None or not asked.is_again(message.number, message.base_length, tree):
            asked = await self._ask(held, message, tree)
        answer = await asyncio.shield(asked.answer)
        await self._send(pb.ServerMessage(verdict=translate.write_verdict(message.number, answer)))

    async def _ask(self, held: Held, message: pb.Round, tree: TokenTree) -> Asked:
        if message.number != held.rounds:
            raise Mismatch(f"round {message.number} came when round {held.rounds} was due")
        await self._settle(held, message.base_length, message.digest)
        held.last = Asked(
            message.number,
            message.base_length,
            tree,
            asyncio.wrap_future(held.engine.verify(held.session, tree)),
        )
        held.last.answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # looked at here, raised by who waits
        held.rounds += 1
        return held.last

    async def _is_dead(self, held: Held, message: pb.Round) -> bool:
        """Whether a round was sent ahead of a verdict that came out otherwise."""
        if held.last is not None:
            await asyncio.wait({held.last.answer})
        due = message.number == held.rounds and message.base_length == held.session.length
        return not due or held.digest(message.base_length) != message.digest

    async def _settle(self, held: Held, base_length: int, digest: int) -> None:
        """Let what an earlier stream asked for come to its end, and take back what the client has not heard of."""
        if held.last is not None:
            await asyncio.wait({held.last.answer})
        if held.generating is not None:
            await asyncio.wait({held.generating})
        if held.epoch != self._epoch:
            raise Mismatch("another stream has resumed this session")
        if base_length > held.session.length:
            raise Mismatch(
                f"the client counts {base_length} committed tokens, the target {held.session.length}"
            )
        if held.digest(base_length) != digest:
            raise Mismatch(
                f"the first {base_length} tokens of the client are not those of the target"
            )
        if base_length < held.session.length:
            held.engine.rewind(held.session, base_length)

    async def _generate(self, held: Held, message: pb.Continue) -> None:
        policy = asked_policy(message, held.drafts, self._max_tree_nodes)
        stop_ids = translate.read_stop_ids(message.stop_ids)
        await self._settle(held, message.base_length, message.digest)
        answers: Feed[pb.Tokens] = Feed()
        left = held.left = threading.Event()
        if message.fused:
            beside = Continuation(held, policy, message.max_tokens, stop_ids)
            held.generating = asyncio.get_running_loop().run_in_executor(
                self._service.workers, beside.run, answers.put
            )
        else:
            held.generating = asyncio.wrap_future(
                held.engine.generate(
                    held.session, message.max_tokens, stop_ids, _as_tokens(answers.put)
                )
            )
        answers.follow(held.generating)
        try:
            last = False
            while not last:
                tokens = await answers.get()
                last = tokens.last
                await self._send(pb.ServerMessage(tokens=tokens))
                interruption = None if last else self._inbox.interruption()
                if interruption == "close":
                    return
                if interruption == "halt":
                    left.set()
                    held.engine.halt(held.session)
        finally:
            left.set()

    async def _send(self, message: pb.ServerMessage) -> None:
        """Raises Gone when nobody reads."""
        async with self._writing:
            self._service.observer.bytes_down(message.ByteSize())
            try:
                await asyncio.wait_for(self._write(message), self._leases.lease_seconds)
            except (grpc.aio.BaseError, asyncio.TimeoutError) as error:
                raise Gone("the client has gone, or reads nothing") from error


def _as_tokens(put: Callable[[pb.Tokens], None]) -> Callable[[Answer, bool], None]:
    """What the engine tells of a token, as a message; on the engine's thread."""
    return lambda answer, last: put(
        translate.write_tokens(
            [answer.verdict.next_token], 0, last, answer.queue_seconds, answer.model_seconds
        )
    )
