"""The target's side of the wire: one Stream for each client's session, over engines that all of them share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio

from grpc_comm import translate
from grpc_comm.catalogue import Catalogue
from grpc_comm.inbox import Inbox
from grpc_comm.keys import Key, Keys
from grpc_comm.leases import Leases
from grpc_comm.observer import ServiceObserver
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.stream import Stream
from grpc_comm.translate import Description
from inference.errors import Busy, OutriderError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

log = logging.getLogger(__name__)


class TargetService(verifier_pb2_grpc.TargetServicer):
    """Serves engines to many sessions; what goes wrong in one ends that one, with a status in the user's terms."""

    def __init__(self, catalogue: Catalogue, keys: Keys, leases: Leases, observer: ServiceObserver, *, share_prefixes: bool) -> None:
        self.catalogue, self.leases, self.observer = catalogue, leases, observer
        self._keys, self._share_prefixes = keys, share_prefixes
        self._streams: set[Stream] = set()
        self.draining = False

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        try:
            served = await self.catalogue.served(request.model)
        except OutriderError as error:
            await self._refuse(context, error)
            raise
        return translate.write_description(self.limited(served.description, self._key(context)), self.catalogue.names)

    async def Session(self, requests: AsyncIterator[pb.ClientMessage], context: Context) -> None:
        key = self._key(context)
        inbox = Inbox(requests, self.observer)
        stream = Stream(self, key, inbox, context.write)
        self._streams.add(stream)
        try:
            await stream.serve()
        except OutriderError as error:
            await self._refuse(context, error)
        except Exception as error:  # the one place where a session's internal fault becomes a status, so that the others go on
            log.exception("a session failed")
            self.observer.rejected(grpc.StatusCode.INTERNAL.name, key.name)
            await context.abort(grpc.StatusCode.INTERNAL, f"{translate.FAULT}: {type(error).__name__}")
        finally:
            self._streams.discard(stream)
            inbox.close()

    async def drain(self, reason: str, retry_after: float) -> None:
        """Take no new sessions and ask those that are here to leave between two rounds."""
        self.draining = True
        self.observer.draining()
        await asyncio.gather(*(stream.go_away(reason, retry_after) for stream in self._streams), return_exceptions=True)

    def limited(self, description: Description, key: Key) -> Description:
        """What this key may use of it."""
        length = min(description.sequence_length, key.sequence_length or description.sequence_length)
        nodes = min(description.max_tree_nodes, key.tree_nodes or description.max_tree_nodes)
        return replace(description, sequence_length=length, max_tree_nodes=nodes)

    def prefix_tenant(self, key: Key) -> str:
        """Whose rows a session may start from."""
        return "" if self._share_prefixes else key.name

    def _key(self, context: Context) -> Key:
        key = self._keys.identify(context.invocation_metadata())
        assert key is not None, "the interceptor has let an unknown caller pass"
        return key

    async def _refuse(self, context: Context, error: OutriderError) -> None:
        self.observer.rejected(translate.status_code(error).name, self._key(context).name)
        trailing = ((translate.RETRY_AFTER, str(round(error.retry_after * 1e3))),) if isinstance(error, Busy) else ()
        await context.abort(translate.status_code(error), str(error), trailing)
