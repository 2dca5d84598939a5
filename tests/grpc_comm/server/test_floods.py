"""Frames without end, by a caller without a token, do not fill the target's memory.

Only gRPC's core sees these frames. Its version 1.71.2 kept 700 MB of the PING flood.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.certificate import issue
from tests.support.flooding import FLOODS, Flooded, flood, flooded, pings, resident
from tests.support.hostile import keys_file
from tests.support.wire_fixtures import WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MOST_BYTES = 64 * 2**20
"""That a flood may add: caches and arenas of the core, and what its allocator keeps."""

MOST_BYTES_OF_HEADERS = 256 * 2**20
"""The core takes 1 to 2 MB to refuse a call of 8,000 headers, of 64 calls at once."""

ENOUGH_BYTES = 2**19
"""Of a flood, to be one: some 700 bytes a frame would exceed the limit."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    with flooded(keys_file(tmp_path_factory.mktemp("plain") / "keys.json", alice={})) as started:
        yield started


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    folder = tmp_path_factory.mktemp("tls")
    files = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for path, content in zip(files, issue(["localhost"]), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    keys = keys_file(folder / "keys.json", alice={})
    with flooded(keys, certificate=files[1:], authority=files[0]) as started:
        yield started


def is_healthy(target: Flooded) -> bool:
    address = f"localhost:{target.address.port}"
    if target.authority is None:
        channel = grpc.insecure_channel(address)
    else:
        trusted = grpc.ssl_channel_credentials(target.authority.read_bytes())
        channel = grpc.secure_channel(address, trusted)
    with channel:
        request = health_pb2.HealthCheckRequest()
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=WAIT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_does_not_fill_the_memory(kind: str, target: Flooded) -> None:
    before = resident(target.pid)
    assert flood(target, FLOODS[kind]) > ENOUGH_BYTES
    assert is_healthy(target)
    most = MOST_BYTES_OF_HEADERS if kind == "HPACK bomb" else MOST_BYTES
    assert resident(target.pid) - before < most


def test_a_flood_of_pings_through_tls_does_not_fill_the_memory(encrypted: Flooded) -> None:
    before = resident(encrypted.pid)
    assert flood(encrypted, pings) > ENOUGH_BYTES
    assert is_healthy(encrypted)
    assert resident(encrypted.pid) - before < MOST_BYTES
