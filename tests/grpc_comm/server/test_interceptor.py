"""What stands before every method of a target with keys: whoever is not known is refused, and
nothing they send is read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from grpc_comm.keys import Keys
from grpc_comm.server.guard import KeyInterceptor
from tests.support.hostile import bearer, keys_file
from tests.support.wire_fixtures import WAIT

SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return keys_file(tmp_path / "keys.json", bob={})


@contextmanager
def serving(keys: Keys, read: list[bytes]) -> Iterator[grpc.Channel]:
    """A server with a method of each shape, named as the shape, that answers with what it was
    sent; `read` holds what it parsed.
    """

    def parse(message: bytes) -> bytes:
        read.append(message)
        return message

    async def one(request: bytes, _context: Any) -> bytes:
        return request

    async def many(request: bytes, _context: Any) -> Any:
        yield request

    async def joined(requests: Any, _context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def echo(requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request

    async def until(stopped: asyncio.Event) -> None:
        server = grpc.aio.server(interceptors=[KeyInterceptor(keys)])
        shapes = zip(SHAPES, (one, many, joined, echo), strict=True)
        handlers = {
            shape: getattr(grpc, f"{shape}_rpc_method_handler")(answer, parse, None)
            for shape, answer in shapes
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        checks = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        port.set_result(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await stopped.wait()
        await server.stop(None)

    async def run() -> None:
        stopped = asyncio.Event()
        ending.set_result((asyncio.get_running_loop(), stopped))
        await until(stopped)

    port: Future[int] = Future()
    ending: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    with grpc.insecure_channel(f"127.0.0.1:{port.result(WAIT)}") as channel:
        yield channel
    loop, stopped = ending.result(WAIT)
    loop.call_soon_threadsafe(stopped.set)
    thread.join(WAIT)


def call(channel: grpc.Channel, method: str, shape: str, message: bytes, metadata: Any) -> bytes:
    several, answers = shape.startswith("stream"), shape.endswith("stream")
    made = getattr(channel, shape)(method)(
        iter([message]) if several else message, metadata=metadata, timeout=WAIT
    )
    return b"".join(made) if answers else made


def refusal_of(attempt: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refusal:
        attempt()
    return refusal.value.code(), refusal.value.details()


def test_an_unknown_caller_is_refused_whatever_the_methods_shape_and_nothing_of_theirs_is_parsed(
    file: Path,
) -> None:
    read: list[bytes] = []
    with serving(Keys.read(file), read) as channel:
        for shape in SHAPES:
            for method in (
                f"/t.T/{shape}",
                "/t.T/none",
                "/none/none",
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            ):
                for metadata in ([], bearer("wrong")):
                    refused = refusal_of(
                        lambda m=method, s=shape, d=metadata: call(
                            channel, m, s, b"x" * 1_000_000, d
                        )
                    )
                    assert refused == (
                        grpc.StatusCode.UNAUTHENTICATED,
                        "the token is missing or wrong (--token_file)",
                    )
        assert read == []
        for shape in SHAPES:
            assert call(channel, f"/t.T/{shape}", shape, b"hello", bearer("bob")) == b"hello"
        known = refusal_of(lambda: call(channel, "/t.T/none", "unary_unary", b"", bearer("bob")))
        assert known[0] is grpc.StatusCode.UNIMPLEMENTED


def test_health_is_told_to_anyone_as_a_whole_without_reading_what_they_sent_and_not_watched(
    file: Path,
) -> None:
    with serving(Keys.read(file), []) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "no such service", "x" * 2_000_000):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        watching = refusal_of(
            lambda: next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT))
        )
        assert watching[0] is grpc.StatusCode.UNAUTHENTICATED
        asked = refusal_of(
            lambda: stub.Check(
                health_pb2.HealthCheckRequest(service="no such service"),
                metadata=bearer("bob"),
                timeout=WAIT,
            )
        )
        assert asked[0] is grpc.StatusCode.NOT_FOUND


def test_a_message_longer_than_its_senders_key_allows_is_not_parsed(tmp_path: Path) -> None:
    read: list[bytes] = []
    path = keys_file(tmp_path / "keys.json", alice={"message_bytes": 100}, bob={})
    with serving(Keys.read(path), read) as channel:
        for shape in SHAPES:
            assert call(channel, f"/t.T/{shape}", shape, b"x" * 100, bearer("alice")) == b"x" * 100
            read.clear()
            _, said = refusal_of(
                lambda s=shape: call(channel, f"/t.T/{s}", s, b"x" * 101, bearer("alice"))
            )
            assert "a message of 101 bytes: this key may send 100" in said
            assert read == []
            assert call(channel, f"/t.T/{shape}", shape, b"x" * 101, bearer("bob")) == b"x" * 101
