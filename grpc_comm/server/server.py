"""The target's gRPC service, with a Stream for each client session, served in the foreground until
a signal, or on a separate thread for tests and tools.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from grpc_comm import statuses, translate
from grpc_comm.keys import Grant, Key
from grpc_comm.proto import verifier_pb2, verifier_pb2_grpc
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.guard import CallGuard, Context, ServerSecurity, refuse, server_security
from grpc_comm.server.state import ServerState, Target
from grpc_comm.server.stream import Stream
from grpc_comm.transport import Address, check_port, server_options
from inference.errors import Busy, InvalidRequest, OutriderError, Unavailable

__all__ = ["BackgroundServer", "Target", "serve"]

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""Seconds for which open sessions may continue after the first signal."""

RETRY_SECONDS = 2.0
"""Seconds after which clients of a target that shuts down may reconnect."""

SETTLE_SECONDS = 2.0

_SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Target"].full_name


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
        stream = Stream(self._state, grant, requests, context.write)
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
        """Return the caller's rights, which may have changed since the interceptor's check."""
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


def serve(
    target: Target,
    on_ready: Callable[[Address], None],
    grace: float = GRACE_SECONDS,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal ends the server at once.

    on_ready: called with the bound address
    grace: seconds for which open sessions may continue after the first signal
    on_stop: called at the first signal

    Raises InvalidRequest if the address cannot be used or would expose the target.
    """

    async def until_signal() -> None:
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signalled.set)
        async with _Listening(target) as listening:
            on_ready(listening.address)
            await signalled.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            on_stop()
            await listening.stop(grace)

    asyncio.run(until_signal())


class BackgroundServer:
    """A context manager that serves a target on a separate thread. `address`: the bound address"""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ready: Future[Address] = Future()
        self._grace: float | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._until_stopped()), name="outrider server", daemon=True
        )
        self._thread.start()
        self.address = self._ready.result()

    def stop(self, grace: float | None = None) -> None:
        """End open sessions after `grace` seconds (None: at once), then stop. Idempotent."""
        if self._thread.is_alive():
            self._grace = grace
            with suppress(RuntimeError):  # raised if another caller has already closed the loop
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    async def _until_stopped(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with _Listening(self._target) as listening:
                self._ready.set_result(listening.address)
                await self._stopped.wait()
                await listening.stop(self._grace)
        except InvalidRequest as error:
            self._ready.set_exception(error)
        finally:
            # Wake a caller that still waits for the server to start.
            self._ready.cancel()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Listening:
    """A gRPC server from bind to stop, on the running loop."""

    def __init__(self, target: Target) -> None:
        security = server_security(target.security, target.address)
        options = server_options(_longest(target))
        guard = CallGuard(security.keys, target.metrics)
        self._server = grpc.aio.server(options=options, interceptors=[guard])
        self.address = target.address._replace(port=_bind(self._server, target.address, security))
        self._state = ServerState(target, security.keys)
        self._service = TargetService(self._state)
        verifier_pb2_grpc.add_TargetServicer_to_server(self._service, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def __aenter__(self) -> _Listening:
        await self._server.start()
        self._state.begin()
        for name in ("", _SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self

    async def stop(self, grace: float | None) -> None:
        """Accept no new sessions, ask clients to leave, and end sessions after `grace` seconds."""
        self._state.stop_tasks()
        await self._health.enter_graceful_shutdown()
        if grace:
            self._service.drain("the target is shutting down", RETRY_SECONDS)
        await self._server.stop(grace)
        await _settle()

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)
        await self._state.end()


async def _settle() -> None:
    """Wait until ended sessions have released their rows: gRPC prints a traceback for each session
    that is cancelled with the loop.
    """
    sessions = asyncio.all_tasks() - {asyncio.current_task()}
    if sessions:
        await asyncio.wait(sessions, timeout=SETTLE_SECONDS)


def _longest(target: Target) -> int | None:
    """Return the maximum tokens of a prompt; None if listed models are not loaded yet."""
    return None if target.listed else target.engine.sequence_length


def _bind(server: grpc.aio.Server, address: Address, security: ServerSecurity) -> int:
    """Bind the address and return the port; raise InvalidRequest if that fails."""
    check_port(address.port)
    try:
        if security.credentials is None:
            return server.add_insecure_port(str(address))
        return server.add_secure_port(str(address), security.credentials)
    except RuntimeError as error:
        raise InvalidRequest(
            f"cannot listen on {address}: is the port in use, or the host another machine?"
        ) from error
