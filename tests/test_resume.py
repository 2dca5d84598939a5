"""A session outlives its stream and its target: what breaks, drains or is full costs time, and no token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from grpc_comm import client
from grpc_comm.client import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.remote import Patience, RemoteVerifier
from grpc_comm.server import BackgroundServer
from inference.accept import Verdict
from inference.backends import Segment
from inference.backends.eager import EagerModel
from inference.decode import Verifier, decode
from inference.engine import Engine
from inference.errors import OutriderError, Unavailable
from inference.local import LocalVerifier
from inference.policy import BestFirst
from inference.sampling import SamplingParams
from inference.tree import IntArray
from outrider.link import ShapedLink, shaped_link
from tests import pairs
from tests.hostile import eventually
from tests.test_streams import draining
from tests.wire_fixtures import (
    FAULTY,
    WAIT,
    assert_serves,
    background,
    connected,
    opened,
    successor_engine,
    tree,
)

PROMPT, TOKENS = [7, 3, 30], 60
TEMPERATURES = [0.0, 0.7, 1.0]
NEVER = 3600.0
"""Seconds of patience that no test waits for."""


class Halting(EagerModel):
    """A model that stops in its `halt`-th forward from now, until the gate opens."""

    halt = 0

    def __init__(self, rows: int) -> None:
        super().__init__(
            pairs.decoder(1), rows=rows, capacity=pairs.SEQUENCE_LENGTH + 64, max_nodes=64
        )
        self.halted, self.gate = threading.Event(), threading.Event()

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self.halt -= 1
        if self.halt == 0:
            self.halted.set()
            assert self.gate.wait(WAIT)
        return super().choose(segments)


def tiny_engine() -> Engine:
    return Engine(
        Halting(2),
        sequence_length=pairs.SEQUENCE_LENGTH,
        max_tree_nodes=64,
        vocabulary=pairs.VOCABULARY,
    )


class Way(NamedTuple):
    """A client's way to a target of its own that can be cut and held up; `notices` is what the user is told."""

    model: Halting
    connection: Connection
    cut: Callable[[], None]
    notices: list[str]

    def halt_in(self, forwards: int) -> None:
        self.model.halted.clear()
        self.model.gate.clear()
        self.model.halt = forwards

    def break_while_halted(self, verifier: RemoteVerifier) -> None:
        """Cut the link while the target computes what the client waits for."""
        assert self.model.halted.wait(WAIT)
        self.cut()
        eventually(lambda: verifier.lost or bool(verifier.traffic.resumes))
        self.model.gate.set()


@pytest.fixture(scope="module")
def link() -> Iterator[tuple[Engine, ShapedLink]]:
    engine = tiny_engine()
    with background(engine) as server, shaped_link(str(server.address)) as link:
        yield engine, link


@pytest.fixture
def way(link: tuple[Engine, ShapedLink]) -> Iterator[Way]:
    engine, shaped = link
    assert isinstance(engine.model, Halting)
    notices: list[str] = []
    with connect(shaped.address, patience=Patience(WAIT, notices.append)) as connection:
        yield Way(engine.model, connection, shaped.cut, notices)
        engine.model.gate.set()


def expected(params: SamplingParams) -> list[int]:
    """The target's own decoding, in process."""
    verifier = LocalVerifier(pairs.engine(pairs.decoder(1), rows=1))
    verifier.open(PROMPT, params).result()
    return list(verifier.generate(TOKENS, frozenset()))


def drafted(
    verifier: Verifier, params: SamplingParams, between: Callable[[int], None] = lambda number: None
) -> list[int]:
    """The text of rounds of a draft that is often wrong; `between` is called after each."""
    drafter = pairs.drafter(pairs.perturbed(1, 0.02), BestFirst(nodes=6, depth=3))
    text: list[int] = []
    for number, step in enumerate(decode(PROMPT, params, drafter, verifier, TOKENS)):
        text += step.tokens
        between(number)
    verifier.close()
    return text


def generated(
    verifier: Verifier, params: SamplingParams, between: Callable[[int], None] = lambda number: None
) -> list[int]:
    """The text of the target alone; `between` is called after each token."""
    verifier.open(PROMPT, params).result(WAIT)
    text = []
    for number, token in enumerate(verifier.generate(TOKENS, frozenset())):
        text.append(token)
        between(number)
    verifier.close()
    return text


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_stream_cut_between_rounds_goes_on_without_a_prefill(
    way: Way, temperature: float
) -> None:
    params, verifier = SamplingParams(temperature, seed=5), way.connection.verifier()
    prefill: list[float] = []

    def between(number: int) -> None:
        if number == 2:
            prefill.append(verifier.traffic.prefill_seconds)
            way.cut()
            eventually(lambda: verifier.lost)

    assert drafted(verifier, params, between) == expected(params)
    assert (
        verifier.traffic.resumes,
        verifier.traffic.reopenings,
        verifier.traffic.prefill_seconds,
    ) == (1, 0, prefill[0])
    assert ["looking for it again" in way.notices[0], "connected" in way.notices[1]] == [True, True]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("make", [drafted, generated])
def test_a_stream_cut_while_the_target_computes_goes_on_without_a_prefill(
    way: Way, make: Callable[..., list[int]], temperature: float
) -> None:
    params, verifier = SamplingParams(temperature, seed=6), way.connection.verifier()
    way.halt_in(6)
    with ThreadPoolExecutor() as pool:
        text = pool.submit(make, verifier, params)
        way.break_while_halted(verifier)
        assert text.result(WAIT) == expected(params)
    assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (1, 0)
    assert len(way.notices) == 2


def test_heartbeats_keep_a_session_that_has_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "HEARTBEAT_SECONDS", 0.05)
    with connected(successor_engine(), lease_seconds=1.5) as connection:
        verifier = opened(connection)
        sent = verifier.traffic.bytes_up
        eventually(
            lambda: (
                verifier.traffic.bytes_up
                >= sent + 5 * pb.ClientMessage(heartbeat=pb.Heartbeat()).ByteSize()
            )
        )
        assert_serves(verifier)  # after 5 heartbeats, 0.5 s apart
        verifier.close()


def test_a_session_whose_lease_ran_out_is_opened_anew() -> None:
    params, engine = SamplingParams(0.7, seed=8), tiny_engine()
    with (
        background(engine, lease_seconds=1.0) as server,
        shaped_link(str(server.address)) as link,
        looking_at(link.address) as connection,
    ):
        verifier = connection.verifier()

        def between(number: int) -> None:
            if number == 2:
                link.cut()
                eventually(lambda: engine.sessions == [])

        assert drafted(verifier, params, between) == expected(params)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 1)


@contextmanager
def looking_at(*addresses: object, patience: float = WAIT) -> Iterator[Connection]:
    with connect(",".join(map(str, addresses)), patience=Patience(patience)) as connection:
        yield connection


@contextmanager
def targets(
    engines: Sequence[Engine], patience: float = WAIT
) -> Iterator[tuple[list[BackgroundServer], Connection]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(background(engine)) for engine in engines]
        yield (
            servers,
            stack.enter_context(
                looking_at(*[server.address for server in servers], patience=patience)
            ),
        )


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("make", [drafted, generated])
def test_when_a_target_dies_the_next_one_goes_on_after_one_prefill(
    make: Callable[..., list[int]], temperature: float
) -> None:
    params, engines = SamplingParams(temperature, seed=9), [tiny_engine(), tiny_engine()]
    with targets(engines) as ((first, _), connection):
        verifier = connection.verifier()
        model = engines[0].model
        assert isinstance(model, Halting)
        model.halt = 8  # so that it has not made everything by then
        stopping = threading.Thread(target=first.stop)

        def between(number: int) -> None:
            if number == 2:
                stopping.start()
                eventually(lambda: verifier.lost)
                model.gate.set()

        assert make(verifier, params, between) == expected(params)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 1)
        stopping.join(WAIT)


def test_the_last_of_several_targets_is_found() -> None:
    with targets([successor_engine() for _ in range(3)]) as (servers, connection):
        verifier = opened(connection)
        for server in servers[:2]:
            server.stop()
        assert_serves(verifier)
        assert verifier.traffic.reopenings == 1


@pytest.mark.parametrize("make", [drafted, generated])
def test_a_draining_target_moves_its_clients_to_the_next(make: Callable[..., list[int]]) -> None:
    params, engines = SamplingParams(1.0, seed=10), [tiny_engine(), tiny_engine()]
    with targets(engines) as ((first, _), connection), ExitStack() as stack:
        verifier, model = connection.verifier(), engines[0].model
        assert isinstance(model, Halting)
        model.halt = 8

        def between(number: int) -> None:
            if number == 2:
                told = verifier.traffic.bytes_down
                stack.enter_context(draining(first))
                model.gate.set()
                if make is drafted:
                    eventually(lambda: verifier.traffic.bytes_down > told)

        assert make(verifier, params, between) == expected(params)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 1)


@pytest.mark.parametrize("make", [drafted, generated])
def test_a_client_without_patience_finishes_at_a_draining_target(
    make: Callable[..., list[int]],
) -> None:
    params, engine = SamplingParams(0.7, seed=11), tiny_engine()
    with targets([engine], patience=0) as ((server,), connection), ExitStack() as stack:
        verifier = connection.verifier()

        def between(number: int) -> None:
            if number == 2:
                stack.enter_context(draining(server))

        assert make(verifier, params, between) == expected(params)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 0)


def test_a_patient_client_gets_into_a_full_target_later_and_is_told_why_it_waits() -> None:
    notices: list[str] = []
    engine = successor_engine(rows=1, waiting=0)
    with (
        background(engine) as server,
        connect(str(server.address), patience=Patience(WAIT, notices.append)) as connection,
    ):
        held, verifier = opened(connection), connection.verifier()
        admitted = verifier.open([1, 2, 3], SamplingParams())
        eventually(lambda: bool(notices))
        held.close()
        admitted.result(WAIT)
        assert_serves(verifier)
        assert [notices[0].startswith("the target is full"), notices[1]] == [
            True,
            f"connected to {server.address} again",
        ]
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 0)


def test_without_patience_a_lost_target_fails_at_once() -> None:
    with targets([successor_engine(), successor_engine()], patience=0) as (servers, connection):
        verifier = opened(connection)
        servers[0].stop()
        with pytest.raises(Unavailable, match="went away"):
            verifier.submit(tree([3], [-1])).result(WAIT)


@contextmanager
def searching(silent: bool) -> Iterator[tuple[Connection, RemoteVerifier, Future[Verdict]]]:
    """A client that looks for a target that is gone, or that listens and says nothing."""
    notices: list[str] = []
    with ExitStack() as stack:
        server = stack.enter_context(background(successor_engine()))
        connection = stack.enter_context(
            connect(str(server.address), patience=Patience(NEVER, notices.append))
        )
        verifier = opened(connection)
        server.stop()
        if silent:
            stack.enter_context(socket.create_server(server.address))
        verdict = verifier.submit(tree([3], [-1]))
        eventually(lambda: bool(notices))
        time.sleep(0.3)  # into the first or the second attempt
        yield connection, verifier, verdict


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("by", ["verifier", "connection"])
def test_closing_ends_the_search_for_a_target(by: str, silent: bool) -> None:
    with searching(silent) as (connection, verifier, verdict):
        assert verifier.lost or silent
        verifier.close() if by == "verifier" else connection.close()
        with pytest.raises(Unavailable):
            verdict.result(WAIT)
        assert not verifier.lost


def test_a_verifier_that_was_closed_while_it_searched_opens_again() -> None:
    with (
        background(successor_engine()) as server,
        looking_at(server.address, patience=NEVER) as connection,
    ):
        verifier = connection.verifier()
        for _ in range(5):
            verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
            server.stop()
            verdict = verifier.submit(tree([3], [-1]))
            verifier.close()
            with pytest.raises(Unavailable):
                verdict.result(WAIT)
            server = background(successor_engine(), address=server.address)
        verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
        assert_serves(verifier)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 0)
        server.stop()


def test_a_target_that_was_restarted_is_found_again() -> None:
    with background(successor_engine()) as server, looking_at(server.address) as connection:
        verifier = opened(connection)
        assert_serves(verifier)
        server.stop()
        verdict = verifier.submit(tree([5, 6], [-1, 0]))
        with background(successor_engine(), address=server.address):
            assert verdict.result(WAIT) == Verdict((1,), 7)
            assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 1)


def test_a_fault_of_the_target_is_told_and_not_asked_for_again() -> None:
    with targets([successor_engine()]) as (_, connection):
        verifier = opened(connection)
        with pytest.raises(OutriderError, match="a fault in the target"):
            verifier.submit(tree([3, FAULTY], [-1, 0])).result(WAIT)
        assert (verifier.traffic.resumes, verifier.traffic.reopenings) == (0, 0)
