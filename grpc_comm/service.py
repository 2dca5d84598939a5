"""The target's side of the wire: one Stream for each client's session, over engines that all of them share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio

from grpc_comm import translate
from grpc_comm.catalogue import Catalogue
from grpc_comm.generation import GenerationCall
from grpc_comm.inbox import Inbox
from grpc_comm.keys import Key, Keys
from grpc_comm.leases import Leases
from grpc_comm.observer import ServiceObserver
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.stream import Stream
from grpc_comm.translate import Description
from inference.errors import Busy, OutriderError, Unavailable

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

GO_AWAY_SECONDS = 1.0

MOST_GENERATIONS = 64
"""Texts that are made at once by Generate, or with the draft beside the target, each on a thread; more wait."""

log = logging.getLogger(__name__)


class TargetService(verifier_pb2_grpc.TargetServicer):
    """Serves engines to many sessions; what goes wrong in one ends that one, with a status in the user's terms."""

    def __init__(
        self,
        catalogue: Catalogue,
        keys: Keys,
        leases: Leases,
        observer: ServiceObserver,
        *,
        share_prefixes: bool,
    ) -> None:
        self.catalogue, self.leases, self.observer = catalogue, leases, observer
        self._keys, self._share_prefixes = keys, share_prefixes
        self._streams: set[Stream] = set()
        self._generations: set[GenerationCall] = set()
        self.workers = ThreadPoolExecutor(MOST_GENERATIONS, thread_name_prefix="generation")
        self.draining = False

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        key = await self._key(context)
        async with self._guarded(context, key):
            served = await self.catalogue.served(request.model)
        now = replace(self.limited(served.description, key), sessions=len(served.engine.sessions))
        return translate.write_description(now, self.catalogue.names)

    async def Session(self, requests: AsyncIterator[pb.ClientMessage], context: Context) -> None:
        key = await self._key(context)
        inbox = Inbox(requests, self.observer)
        stream = Stream(self, key, inbox, context.write)
        self._streams.add(stream)
        try:
            async with self._guarded(context, key):
                self._check_streams(key)
                await stream.serve()
        finally:
            self._streams.discard(stream)
            inbox.close()

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.Generated]:
        key = await self._key(context)
        self.observer.bytes_up(request.ByteSize())
        async with self._guarded(context, key):
            served = await self.catalogue.served(request.open.model)
            self.check_room(key)
            call = GenerationCall(
                key, served, self.limited(served.description, key), request, self.prefix_tenant(key)
            )
            with self._counted(call):
                async for message in call.messages(self.workers):
                    self.observer.bytes_down(message.ByteSize())
                    yield message

    async def drain(self, reason: str, retry_after: float) -> None:
        """Take no new sessions and ask those that are here to leave between two rounds."""
        self.draining = True
        self.observer.draining()
        told = [
            asyncio.create_task(stream.go_away(reason, retry_after)) for stream in self._streams
        ]
        if told:
            await asyncio.wait(
                told, timeout=GO_AWAY_SECONDS
            )  # a client that reads nothing holds nobody up

    def limited(self, description: Description, key: Key) -> Description:
        """What this key may use of it."""
        length = min(
            description.sequence_length, key.sequence_length or description.sequence_length
        )
        nodes = min(description.max_tree_nodes, key.tree_nodes or description.max_tree_nodes)
        return replace(description, sequence_length=length, max_tree_nodes=nodes)

    def prefix_tenant(self, key: Key) -> str:
        """Whose rows a session may start from."""
        return "" if self._share_prefixes else key.name

    @contextmanager
    def _counted(self, call: GenerationCall) -> Iterator[None]:
        self._generations.add(call)
        try:
            yield
        finally:
            self._generations.discard(call)

    def check_room(self, key: Key) -> None:
        """Raises unless the key may open another session; a text being made counts as one."""
        if self.draining:
            raise Unavailable("this target is about to end")
        self.leases.check_room(
            key.name,
            key.sessions,
            besides=sum(call.key.name == key.name for call in self._generations),
        )

    def _check_streams(self, key: Key) -> None:
        """Streams that open nothing are bounded, too; a session may have a new one while its old one still dies."""
        most = None if key.sessions is None else 2 * key.sessions + 2
        if most is not None and sum(stream.key.name == key.name for stream in self._streams) > most:
            raise Busy(
                f"this key may have {key.sessions} sessions, and has {most} streams: try again later",
                self.leases.lease_seconds,
            )

    async def _key(self, context: Context) -> Key:
        """Whose call it is; the keys file may have changed since the interceptor looked."""
        key = self._keys.identify(context.invocation_metadata())
        if key is None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong (--token_file)"
            )
        return key

    @asynccontextmanager
    async def _guarded(self, context: Context, key: Key) -> AsyncIterator[None]:
        """What goes wrong within becomes the call's status."""
        try:
            yield
        except OutriderError as error:
            await self._refuse(context, error, key)
        except Exception as error:  # the one place where a session's internal fault becomes a status, so that the others go on
            log.exception("a session failed")
            self.observer.rejected(grpc.StatusCode.INTERNAL.name, key.name)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"{translate.FAULT}: {type(error).__name__}"
            )

    async def _refuse(self, context: Context, error: OutriderError, key: Key) -> None:
        self.observer.rejected(translate.status_code(error).name, key.name)
        trailing = (
            ((translate.RETRY_AFTER, str(round(error.retry_after * 1e3))),)
            if isinstance(error, Busy)
            else ()
        )
        await context.abort(translate.status_code(error), str(error), trailing)
