"""The target's side of the wire: one Stream for each client's session, over engines that all of
them share.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio

from grpc_comm import translate
from grpc_comm.keys import Grant, Key, Keys
from grpc_comm.observer import ServiceObserver
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.server.model_registry import Catalogue
from grpc_comm.server.rate_limit import NODES_PER_SECOND, Allowance
from grpc_comm.server.request_reader import Inbox
from grpc_comm.server.session_table import Leases
from grpc_comm.server.stream import Stream
from grpc_comm.translate import Description
from inference.errors import Busy, OutriderError, Unavailable

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

log = logging.getLogger(__name__)


class TargetService(verifier_pb2_grpc.TargetServicer):
    """Serves engines to many sessions; what goes wrong in one ends that one, with a status in
    the user's terms.
    """

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
        self._allowances: dict[str, Allowance] = {}  # by the names of keys
        self.draining = False

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        key = (await self._grant(context)).key
        async with self._guarded(context, key):
            served = await self.catalogue.served(request.model)
        now = replace(self.limited(served.description, key), sessions=len(served.engine.sessions))
        return translate.write_description(now, self.catalogue.names)

    async def Session(self, requests: AsyncIterator[pb.ClientMessage], context: Context) -> None:
        grant = await self._grant(context)
        key = grant.key
        inbox = Inbox(requests, self.observer)
        stream = Stream(self, grant, inbox, context.write)
        self._streams.add(stream)
        try:
            async with self._guarded(context, key):
                self._check_streams(key)
                await stream.serve()
        finally:
            self._streams.discard(stream)

    def drain(self, reason: str, retry_after: float) -> None:
        """Take no new sessions, and end those that are here with the forward in hand."""
        self.draining = True
        self.observer.draining()
        for stream in self._streams:
            stream.go_away(reason, retry_after)

    def charge(self, key: Key, message: pb.ClientMessage) -> float:
        """Seconds by which a message comes too early for what its key may send."""
        share = max(self.leases.count(key.name), 1)
        allowance = self._allowances.setdefault(key.name, Allowance())
        most_nodes = key.nodes_per_second or NODES_PER_SECOND * share
        nodes = len(message.nodes.tokens) * NODES_PER_SECOND * share / most_nodes
        return allowance.charge(nodes, message.ByteSize(), share)

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

    def check_room(self, key: Key) -> None:
        """Raises unless the key may open another session."""
        if self.draining:
            raise Unavailable("this target is about to end")
        self.leases.check_room(key.name, key.sessions)

    def _check_streams(self, key: Key) -> None:
        """Streams that open nothing are bounded, too; a session may have a new one while its old
        one still dies.
        """
        most = None if key.sessions is None else 2 * key.sessions + 2
        if most is not None and sum(stream.key.name == key.name for stream in self._streams) > most:
            raise Busy(
                f"this key may have {key.sessions} sessions, and has {most} streams: try again "
                "later",
                self.leases.lease_seconds,
            )

    async def _grant(self, context: Context) -> Grant:
        """Whose call it is; the keys file may have changed since the interceptor looked."""
        grant = self._keys.grant(context.invocation_metadata())
        if grant is None:
            words = "the token is missing or wrong (--token_file)"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, words)
        return grant

    @asynccontextmanager
    async def _guarded(self, context: Context, key: Key) -> AsyncIterator[None]:
        """What goes wrong within becomes the call's status."""
        try:
            yield
        except OutriderError as error:
            await self._refuse(context, error, key)
        # the one place where a session's internal fault becomes a status, so that the others go on
        except Exception as error:
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
