"""Sessions are spread over replicas, and those of a lost replica continue at the next one."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpc_comm.certificate import make_certificate
from grpc_comm.client import replicas as module
from grpc_comm.client.channel import advice, refuses
from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.replicas import check_same, rendezvous
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.transport import Address
from inference.errors import InvalidRequest, Mismatch, Unavailable
from inference.order import Decode
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import (
    LOOPBACK,
    WAIT,
    assert_serves,
    background,
    describe,
    eventually,
    free_port,
    in_turn,
    opened,
    successor_engine,
    until_it_fails,
)

NAMES = ["10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"]
KEYS = [f"session {number}" for number in range(1_000)]


@pytest.fixture(autouse=True)
def all_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of a test share a machine that may be busy."""
    monkeypatch.setattr(module, "GATHER_SECONDS", WAIT)


def firsts(names: Sequence[str]) -> dict[str, str]:
    return {key: rendezvous(key, names)[0] for key in KEYS}


@contextmanager
def replicas(count: int) -> Iterator[tuple[list[BackgroundServer], str]]:
    """Targets that count upwards, and their addresses."""
    with ExitStack() as stack:
        servers = [stack.enter_context(background(successor_engine())) for _ in range(count)]
        yield servers, ",".join(str(server.address) for server in servers)


def test_a_thousand_sessions_are_spread_evenly() -> None:
    counts = Counter(firsts(NAMES).values())
    assert set(counts) == set(NAMES)
    assert all(abs(count - 333) < 60 for count in counts.values()), counts  # four deviations
    assert firsts(NAMES) == firsts(NAMES[::-1])


@pytest.mark.parametrize("lost", NAMES)
def test_a_lost_replica_moves_only_its_own_sessions_and_each_to_its_next(lost: str) -> None:
    left = [name for name in NAMES if name != lost]
    before, after = firsts(NAMES), firsts(left)
    for key in KEYS:
        order = rendezvous(key, NAMES)
        assert after[key] == (order[1] if before[key] == lost else before[key])
    assert {after[key] for key in KEYS if before[key] == lost} == set(left)


def test_a_silent_replica_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 0.1)
    with socket.create_server(LOOPBACK) as mute, replicas(1) as (servers, addresses):
        silent = Address(*mute.getsockname())
        with connect(f"{silent},{addresses}") as connection:
            assert opened(connection).address == str(servers[0].address)


@pytest.mark.parametrize("count", [1, 2])
def test_a_first_call_looks_for_a_target_that_is_about_to_start(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.1)
    places = [Address(LOOPBACK.host, free_port()) for _ in range(count)]
    notices = list[str]()
    with ExitStack() as stack:

        def start(line: str) -> None:
            notices.append(line)
            stack.enter_context(background(successor_engine(), places[-1]))

        addresses, patience = ",".join(map(str, places)), Patience(WAIT, start)
        connection = stack.enter_context(connect(addresses, timeout=1.0, patience=patience))
        (notice,) = notices
        assert notice.startswith("no Outrider target answers at ")
        assert notice.endswith(f"retrying for {WAIT:.0f} s")
        assert_serves(opened(connection))


def test_a_port_that_closes_each_connection_says_nothing_of_its_settings() -> None:
    with socket.create_server(LOOPBACK) as server, ThreadPoolExecutor(2) as pool:
        closed = [pool.submit(lambda: server.accept()[0].close()) for _ in range(2)]
        assert advice(Address(*server.getsockname()), SecurityOptions()) is None
        assert not refuses(Address(*server.getsockname()))
        assert [one.result(WAIT) for one in closed] == [None, None]


def test_wrong_settings_are_refused_at_once_whatever_the_patience() -> None:
    with background(successor_engine()) as server:
        security, patience = SecurityOptions(tls=True), Patience(WAIT, pytest.fail)
        address = str(server.address)
        assert_refused(
            lambda: connect(address, security=security, patience=patience), ["TLS"], Unavailable
        )


@pytest.mark.parametrize(
    "change", [{"model_fingerprint": "m1"}, {"tokenizer_fingerprint": "t1"}, {"dtype": "int8"}]
)
def test_two_replicas_that_are_different_targets_are_refused_and_both_are_named(
    change: dict[str, str],
) -> None:
    engine = successor_engine()
    other = Target(engine, replace(describe(engine), **change), LOOPBACK)  # type: ignore[arg-type]
    with replicas(1) as ((server,), _), BackgroundServer(other) as second:
        both = f"{server.address},{second.address}"
        shown = [str(server.address), str(second.address), *change.values()]
        assert_refused(lambda: connect(both), shown, Mismatch)
    may_differ = replace(describe(engine), rows=9, device="other", times=(((1, 1), 0.5),))
    check_same(describe(engine), server.address, may_differ, second.address)


@pytest.mark.parametrize("count", [1, 2])
def test_replicas_that_come_back_changed_are_left(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.1)
    with (
        replicas(count) as (servers, addresses),
        connect(addresses, patience=Patience(WAIT)) as connection,
        ExitStack() as new,
    ):
        session = opened(connection, in_turn(*servers))
        session.decode(Decode(40_000))
        for server in reversed(servers):
            server.stop()
            engine = successor_engine()
            changed = replace(describe(engine), dtype="int8")
            new.enter_context(BackgroundServer(Target(engine, changed, server.address)))
        with pytest.raises(Mismatch, match="int8"):
            until_it_fails(session)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses: list[str] = []
    ask = socket.getaddrinfo

    def answer(host: str, port: int, *options: Any, **named: Any) -> Any:
        if host != "target.test":
            return ask(host, port, *options, **named)
        if not addresses:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(module, "RESOLVE_SECONDS", 0.1)
    return addresses


def test_each_address_of_a_name_is_a_replica_and_changes_are_followed(named: list[str]) -> None:
    port, hosts = free_port(), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(background(successor_engine(), Address(host, port)))
        named += hosts[:2]
        connection = stack.enter_context(connect(f"dns:///target.test:{port}"))

        def used() -> set[str]:
            sessions = [connection.session(key) for key in KEYS[:40]]
            return {session.address.partition(":")[0] for session in sessions}

        assert used() == {*hosts[:2]}
        named[:] = hosts[1:]
        eventually(lambda: used() == {*hosts[1:]})
        named.clear()  # the name server is away: what is known stays
        assert used() == {*hosts[1:]}
        assert_serves(opened(connection))


def test_the_certificate_names_the_name_and_not_the_address(
    named: list[str], tmp_path: Path
) -> None:
    named += ["127.0.0.1"]
    files = make_certificate(tmp_path / "certificates", ["target.test"])
    theirs = SecurityOptions(tls_cert=files.certificate, tls_key=files.key)
    with background(successor_engine(), security=theirs) as server:
        address = f"dns:///target.test:{server.address.port}"
        with connect(address, security=SecurityOptions(tls_ca=files.ca)) as connection:
            assert_serves(opened(connection))


def test_without_any_replica_or_with_one_twice_the_error_names_it(named: list[str]) -> None:
    dead = [f"{LOOPBACK.host}:{free_port()}" for _ in range(2)]
    for addresses, shown, error in (
        (",".join(dead), dead[1], Unavailable),
        ("dns:///target.test:1", "dns:///target.test:1", Unavailable),
        ("127.0.0.1:1,127.0.0.1:1", "127.0.0.1:1", InvalidRequest),
    ):
        assert_refused(partial(connect, addresses), [shown], error)
