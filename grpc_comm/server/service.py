"""The target's gRPC service: a Stream for each client session, over shared engines."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio

from grpc_comm import statuses, translate
from grpc_comm.keys import Grant, Key
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.server.guard import Context, refuse
from grpc_comm.server.inbox import Inbox
from grpc_comm.server.state import ServerState
from grpc_comm.server.stream import Stream
from inference.errors import Busy, OutriderError, Unavailable

log = logging.getLogger(__name__)


class TargetService(verifier_pb2_grpc.TargetServicer):
    """Serves many sessions on shared engines.

    A fault in a session ends only this session, with a status that the user can understand.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._streams: dict[Stream, None] = {}  # in order of opening

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        key = (await self._grant(context)).key
        async with self._guarded(context, key):
            model = await self._state.catalogue.model(request.model)
        description = model.description
        settings = description.tokenizer_settings if request.tokenizer_settings else b""
        now = replace(
            self._state.limited(description, key),
            tokenizer_settings=settings,
            sessions=len(model.engine.sessions),
        )
        return translate.write_description(now, self._state.catalogue.names)

    async def Session(self, requests: AsyncIterator[pb.ClientMessage], context: Context) -> None:
        grant = await self._grant(context)
        key = grant.key
        inbox = Inbox(requests, self._state.metrics.bytes_up)
        stream = Stream(self._state, grant, inbox, context.write)
        self._streams[stream] = None
        try:
            async with self._guarded(context, key):
                self._check_streams(key)
                await stream.serve()
        finally:
            self._streams.pop(stream, None)

    def drain(self, reason: str, retry_after: float) -> None:
        """Accept no new sessions, and end open sessions after the current forward pass."""
        self._state.draining = True
        self._state.metrics.drain()
        for stream in self._streams:
            stream.go_away(reason, retry_after)

    def _check_streams(self, key: Key) -> None:
        """Raise Busy if a key has too many streams, including streams without a session.

        A session may have a new stream while its old stream is still ending.
        """
        limit = None if key.sessions is None else 2 * key.sessions + 2
        if (
            limit is not None
            and sum(stream.key.name == key.name for stream in self._streams) > limit
        ):
            raise Busy(
                f"this key may have {key.sessions} sessions, and has {limit} streams: try again "
                "later",
                self._state.sessions.lease_seconds,
            )

    async def _grant(self, context: Context) -> Grant:
        """Return the caller's rights. The keys file may have changed since the interceptor's
        check.
        """
        grant = self._state.keys.grant(context.invocation_metadata())
        if grant is None:
            await refuse(context)
        return grant

    @asynccontextmanager
    async def _guarded(self, context: Context, key: Key) -> AsyncIterator[None]:
        """Convert any error raised within this context into the call's status."""
        try:
            yield
        except OutriderError as error:
            await self._refuse(context, error, key)
        # internal errors of a session become a status only here; other sessions continue
        except Exception as error:
            log.exception("a session failed")
            self._state.metrics.reject(grpc.StatusCode.INTERNAL.name, key.name)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"{statuses.FAULT}: {type(error).__name__}"
            )

    async def _refuse(self, context: Context, error: OutriderError, key: Key) -> None:
        self._state.metrics.reject(statuses.status_code(error).name, key.name)
        trailing: tuple[tuple[str, str], ...] = ()
        if isinstance(error, Busy):
            trailing = ((statuses.RETRY_AFTER, str(round(error.retry_after * 1e3))),)
        elif isinstance(error, Unavailable):
            trailing = ((statuses.FROM_TARGET, "1"),)
        await context.abort(statuses.status_code(error), str(error), trailing)
