"""A refused message ends its call with a listed status code, without an ERROR in gRPC's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from grpc_comm.observability.metrics import Metrics
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer
from tests.support.hostile import bearer, keys_file
from tests.support.wire_fixtures import WAIT, background, status, successor_engine

METHODS = [
    "/outrider.v1.Target/Describe",
    "/outrider.v1.Target/Session",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
]
MOST_BYTES = 100

CODES = grpc.StatusCode
UNREADABLE = "a message that cannot be read: the client does not speak this protocol"
TOO_LONG = f"a message of {MOST_BYTES + 1} bytes: this key may send {MOST_BYTES} at once"
REFUSED = {
    "no protobuf": (b"\xff" * MOST_BYTES, CODES.INVALID_ARGUMENT, UNREADABLE),
    "longer than the key's": (b"\xff" * (MOST_BYTES + 1), CODES.INVALID_ARGUMENT, TOO_LONG),
    "longer than any": (b"\xff" * 2**20, CODES.RESOURCE_EXHAUSTED, "larger than max"),
}


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, metrics: Metrics
) -> Iterator[BackgroundServer]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys", alice={"message_bytes": MOST_BYTES})
    security = SecurityOptions(keys_file=keys)
    with background(successor_engine(), security=security, metrics=metrics) as server:
        yield server


def rejections(metrics: Metrics) -> float:
    code = CODES.INVALID_ARGUMENT.name
    return metrics.registry.get_sample_value("outrider_rejected_total", {"code": code}) or 0


def ask(served: BackgroundServer, method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(str(served.address)) as channel:
        call: Any = channel.stream_stream(method)
        return status(call(iter([message]), metadata=bearer("alice"), timeout=WAIT))


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_not_taken_ends_its_call_with_a_listed_code_and_no_error_is_logged(
    method: str,
    kind: str,
    served: BackgroundServer,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    message, code, words = REFUSED[kind]
    before = rejections(metrics)
    with caplog.at_level(logging.WARNING):
        answered, details = ask(served, method, message)
    assert (answered, words in details) == (code, True), details
    assert "grpc._cython" not in {record.name for record in caplog.records}
    assert rejections(metrics) - before == (code is CODES.INVALID_ARGUMENT)


def test_every_method_still_answers_what_it_can_read(served: BackgroundServer) -> None:
    codes = [ask(served, method, b"")[0] for method in METHODS if "Watch" not in method]
    refused = CODES.INVALID_ARGUMENT  # Open must come first
    assert codes == [CODES.OK, refused, CODES.OK]
