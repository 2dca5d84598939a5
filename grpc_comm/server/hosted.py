"""A target in a host process that serves gRPC on its behalf, such as a replica behind an ingress.

The host accepts connections, parses messages and routes calls. The target's code checks the key of
each call before it answers, so authentication does not depend on the host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

import grpc

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import SecurityOptions
from grpc_comm.server.guard import CallGuard, read_keys
from grpc_comm.server.sender import is_hung
from grpc_comm.server.server import TargetService
from grpc_comm.server.state import ServerState, Target
from grpc_comm.server.tasks import cancel, mark_retrieved
from grpc_comm.transport import Address
from inference.errors import InvalidRequest, Unavailable

_SESSION = "/outrider.v1.Target/Session"
_ROUTED_SECONDS, _ROUTED_POLL_SECONDS = 60.0, 0.1
_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)


class Carrier(Protocol):
    """A call as presented by the host, with setters for the call's status."""

    def invocation_metadata(self) -> Iterable[tuple[str, str]]: ...

    def set_code(self, code: grpc.StatusCode) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None: ...


class HostedTarget:
    """A target inside another server, which passes RPCs to it between begin() and end()."""

    def __init__(self, target: Target) -> None:
        check_hosted(target.security)
        keys = read_keys(target.security)
        self._engine, self._guard = target.engine, CallGuard(keys, target.metrics)
        self._state = ServerState(target, keys)
        self._service = TargetService(self._state)

    def begin(self) -> None:
        """Start accepting calls."""
        self._state.begin()

    async def end(self) -> None:
        """End all sessions, and stop the model."""
        await self._state.end()

    @property
    def hung(self) -> bool:
        """Whether a step of the engine takes so long that it counts as hung."""
        return is_hung(self._engine)

    async def describe(self, request: pb.DescribeRequest, carrier: Carrier) -> pb.Description:
        """Answer Describe. For a refused call, set the carrier's status; the answer is empty."""
        try:
            return await self._service.Describe(request, _CallContext(carrier))  # type: ignore[arg-type]  # what it uses of a context
        except _EndedError:
            return pb.Description()

    async def session(
        self, messages: AsyncIterator[pb.ClientMessage], carrier: Carrier
    ) -> AsyncIterator[pb.ServerMessage]:
        """Answer Session until either side ends it, and set the carrier's status."""
        call = _CallContext(carrier)
        work = asyncio.create_task(self._answer(messages, call))
        work.add_done_callback(mark_retrieved)
        try:
            while (message := await call.written.get()) is not None:
                yield message
            await work
        finally:  # also if the host drops the call
            await cancel(work)

    async def _answer(self, messages: AsyncIterator[pb.ClientMessage], call: _CallContext) -> None:
        details = SimpleNamespace(method=_SESSION, invocation_metadata=call.invocation_metadata())
        try:
            handler = await self._guard.intercept_service(self._handler, details)
            await handler.stream_stream(_read(messages, handler.request_deserializer), call)
        except _EndedError:
            pass
        finally:
            await call.written.put(None)

    async def _handler(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            self._service.Session, pb.ClientMessage.FromString
        )


def check_hosted(security: SecurityOptions) -> None:
    """Raise InvalidRequest for TLS options: the host accepts the connections, so TLS ends there."""
    if security.encrypted:
        raise InvalidRequest(
            "behind an ingress TLS ends before the target: leave out --tls_cert, --tls_key and "
            "--tls_ca, and configure TLS in a load balancer or a tunnel in front of the ingress"
        )


def await_routes(ingress: Address) -> None:
    """Block until an ingress routes streams directly to its targets.

    At first, Ray's ingress routes streams through its own proxy, which drops the status of a stream
    without answers: a refusal arrives as OK. Raises Unavailable after a time limit.
    """
    deadline = time.monotonic() + _ROUTED_SECONDS
    with grpc.insecure_channel(str(ingress)) as channel:
        session = verifier_pb2_grpc.TargetStub(channel).Session
        while (seconds_left := deadline - time.monotonic()) > 0:
            messages = iter([pb.ClientMessage()])  # a target refuses it: neither Open nor Resume
            if session(messages, timeout=seconds_left, wait_for_ready=True).code() in _REFUSALS:
                return
            time.sleep(_ROUTED_POLL_SECONDS)
    raise Unavailable(
        f"the ingress at {ingress} reached no target in {_ROUTED_SECONDS:g} s: see Ray's logs"
    )


async def _read(messages: AsyncIterator[pb.ClientMessage], parse: Any) -> AsyncIterator[Any]:
    """Yield messages after checking each against the limits of its sender's key."""
    async for message in messages:
        yield parse(message.SerializeToString())


class _EndedError(Exception):
    """Raised to end a call whose status is set."""


class _CallContext:
    """A call as the service and interceptors see it (grpc.aio.ServicerContext).

    written: queue of answers, with None after the last one. It holds a single answer, so that a
    client that does not read is detected.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.written: asyncio.Queue[pb.ServerMessage | None] = asyncio.Queue(1)

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        return self._carrier.invocation_metadata()

    async def write(self, message: pb.ServerMessage) -> None:
        await self.written.put(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: Sequence[tuple[str, str]] = ()
    ) -> NoReturn:
        self._carrier.set_code(code)
        self._carrier.set_details(details)
        self._carrier.set_trailing_metadata(list(trailing))
        raise _EndedError
