"""A session continues whatever happens to link and target: the text stays the target's own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from grpc_comm.client import connection as client
from grpc_comm.client import patience
from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.server import sender
from grpc_comm.server.server import BackgroundServer
from inference.backends import Chosen, Segment
from inference.backends.eager import EagerModel
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import OutriderError, Unavailable
from inference.loop.decode import Step, TargetSession
from inference.order import Decode, Pace, TokenLogProb
from inference.proposer import Proposer
from inference.sampling import Grammar, GrammarKind, SamplingParams
from outrider.measure.link import EmulatedLink, emulated_link
from tests.support import pairs
from tests.support.pairs import proposers_of, text_of
from tests.support.wire_fixtures import (
    FAULTY,
    WAIT,
    Successor,
    assert_serves,
    background,
    eventually,
    in_turn,
    opened,
    successor_engine,
    until_it_fails,
)

PROMPT, TOKENS = [7, 3, 30], 24
END = len(PROMPT) + TOKENS
TEMPERATURES = (0.0, 0.7, 1.0)
RULE = SamplingParams(
    grammar=Grammar(GrammarKind.REGEX, "([a-f]{1,5} )*"),
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logprobs=2,
    prompt_logprobs=True,
)
SAMPLINGS = [
    replace(params, temperature=temperature, seed=5)
    for params in (SamplingParams(), RULE)
    for temperature in TEMPERATURES
]
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

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.halt -= 1
        if self.halt == 0:
            self.halted.set()
            assert self.gate.wait(WAIT)
        return super().choose(segments)


def tiny_engine() -> Engine:
    length, vocabulary = pairs.SEQUENCE_LENGTH, pairs.VOCABULARY
    return Engine(
        Halting(2),
        sequence_length=length,
        max_tree_nodes=64,
        vocabulary=vocabulary,
        grammars=pairs.grammars(),
    )


def halting(engine: Engine) -> Halting:
    assert isinstance(engine.model, Halting)
    return engine.model


@pytest.fixture(scope="module")
def link() -> Iterator[tuple[Engine, EmulatedLink]]:
    engine = tiny_engine()
    with background(engine) as server, emulated_link(str(server.address)) as link:
        yield engine, link


class Made(NamedTuple):
    """A text with the log-probabilities of its tokens and of its prompt's, where asked for."""

    tokens: list[int]
    logprobs: Any  # a list, or what it has to be up to rounding


def alone(params: SamplingParams) -> Made:
    """The target's own decoding, in process."""
    session = LocalSession(pairs.engine(pairs.decoder(1), rows=1, rules=pairs.grammars()))
    tokens, logprobs = _made(session, params, Decode(END))
    return Made(tokens, pytest.approx(logprobs, abs=1e-3))


def made(
    session: RemoteSession,
    params: SamplingParams,
    pace: Pace = Pace.GO_ON,
    between: Callable[[Step], None] = lambda step: None,
) -> Made:
    """The text with a draft that is often wrong."""
    return _made(session, params, Decode(END, pace=pace), proposers_of("close", pace), between)


def _made(
    session: TargetSession,
    params: SamplingParams,
    order: Decode,
    proposers: Sequence[Proposer] = (),
    between: Callable[[Step], None] = lambda step: None,
) -> Made:
    scores = list[TokenLogProb]()

    def hear(step: Step) -> None:
        scores.extend(step.logprobs)
        between(step)

    tokens = text_of(PROMPT, params, session, order, proposers, hear)
    values = [value for one in (*session.prompt_logprobs, *scores) for value in one.values]
    assert len(values) == (params.logprobs or 0) * (len(PROMPT) - 1 + TOKENS)
    return Made(tokens, values)


@pytest.mark.covering(1)
@pytest.mark.parametrize("params", SAMPLINGS)
@pytest.mark.parametrize("pace", Pace)
def test_a_stream_cut_in_the_middle_goes_on_without_a_prefill(
    link: tuple[Engine, EmulatedLink], params: SamplingParams, pace: Pace
) -> None:
    (engine, shaped), notices, streams = link, list[str](), set[int]()
    patience, model = Patience(WAIT, notices.append), halting(engine)
    with (
        connect(shaped.address, patience=patience) as connection,
        ThreadPoolExecutor() as pool,
    ):
        session = connection.session()
        for event in (model.halted, model.gate):
            event.clear()
        model.halt = 6
        text = pool.submit(made, session, params, pace, lambda step: streams.add(session.stream))
        assert model.halted.wait(WAIT)
        (there,) = engine.sessions
        shaped.cut()
        eventually(lambda: session.lost or bool(session.traffic.resumes))
        model.gate.set()
        assert text.result(WAIT) == alone(params)
        whole, counted = there.progress(0, None), session.traffic
    assert (session.traffic.resumes, session.traffic.reopenings) == (1, 0)
    for name in ("nodes", "forwards", "lone", "model_seconds", "share_seconds"):
        assert getattr(counted, name) == pytest.approx(getattr(whole, name), abs=1e-4), name
    assert ["reconnecting" in notices[0], "connected" in notices[1]] == [True, True]
    assert len(streams) == 2


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
        addresses = [server.address for server in servers]
        yield servers, stack.enter_context(looking_at(*addresses, patience=patience))


def test_without_patience_a_lost_target_fails_at_once() -> None:
    with targets([successor_engine(), successor_engine()], patience=0) as (servers, connection):
        session = opened(connection, in_turn(*servers))
        servers[0].stop()
        with pytest.raises(Unavailable, match="went away"):
            until_it_fails(session)


@contextmanager
def searching(silent: bool) -> Iterator[tuple[Connection, RemoteSession]]:
    """A client that looks for a target that is gone, or that listens and says nothing."""
    notices: list[str] = []
    with ExitStack() as stack:
        server = stack.enter_context(background(successor_engine()))
        connection = stack.enter_context(
            connect(str(server.address), patience=Patience(NEVER, notices.append))
        )
        session = opened(connection)
        server.stop()
        if silent:
            stack.enter_context(socket.create_server(server.address))
        eventually(lambda: bool(notices))
        time.sleep(0.3)  # into the first or the second attempt
        yield connection, session


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("by", ["session", "connection"])
def test_closing_ends_the_search_for_a_target(by: str, silent: bool) -> None:
    with searching(silent) as (connection, session):
        assert session.lost
        session.close() if by == "session" else connection.close()
        with pytest.raises(Unavailable):
            until_it_fails(session)
        assert not session.lost


def test_a_session_that_was_closed_while_it_searched_opens_again() -> None:
    with (
        background(successor_engine()) as server,
        looking_at(server.address, patience=NEVER) as connection,
    ):
        session = connection.session()
        for _ in range(5):
            session.open([1, 2, 3], SamplingParams())
            assert_serves(session)
            session.decode(Decode(40_000))
            server.stop()
            session.close()
            with pytest.raises(Unavailable):
                until_it_fails(session)
            server = background(successor_engine(), address=server.address)
        session.open([1, 2, 3], SamplingParams())
        assert_serves(session)
        assert (session.traffic.resumes, session.traffic.reopenings) == (0, 0)
        server.stop()


def test_a_fault_of_the_target_is_told_and_not_asked_for_again() -> None:
    with targets([successor_engine()]) as (_, connection):
        session = connection.session()
        session.open([1, FAULTY], SamplingParams())
        session.decode(Decode(9))
        with pytest.raises(OutriderError, match="fault"):
            until_it_fails(session)
        assert (session.traffic.resumes, session.traffic.reopenings) == (0, 0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(client, "HEARTBEAT_SECONDS", 0.02)
    for name in ("MAX_SILENCE", "MIN_SILENCE"):
        monkeypatch.setattr(patience, name, 1.0)


@pytest.fixture
def wedged(hasty: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that never comes back from its next forward of a text."""
    monkeypatch.setattr(sender, "MAX_STEP_SECONDS", 0.1)
    engine = successor_engine()
    yield engine
    assert isinstance(engine.model, Successor)
    engine.model.gate.set()


@pytest.mark.parametrize("patience", [0.0, 2.5])
def test_a_target_that_answers_and_never_works_is_given_up_when_patience_ends(
    wedged: Engine, patience: float
) -> None:
    assert isinstance(wedged.model, Successor)
    with targets([wedged], patience=patience) as (_, connection):
        session = opened(connection)
        wedged.model.gate.clear()
        session.decode(Decode(9))
        with pytest.raises(Unavailable, match="nothing for 1 s"):
            until_it_fails(session)
        assert (session.traffic.resumes > 0) == (patience > 0)
        wedged.model.gate.set()


def test_the_first_call_ends_when_the_target_says_nothing(hasty: None) -> None:
    engine = successor_engine()
    with background(engine) as server, connect(str(server.address)) as connection:
        session = connection.session()
        server.stop()
        with socket.create_server(server.address):
            session.open([1, 2, 3], SamplingParams())
            with pytest.raises(Unavailable):
                until_it_fails(session)
