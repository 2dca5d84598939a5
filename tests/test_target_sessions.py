"""The contract of a TargetSession. A new one joins by a line of SESSIONS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import Busy, InvalidRequest
from inference.loop.decode import TargetSession
from inference.order import Decode, Pace, TokenLogProb
from inference.proposer import MODEL, NOBODY
from inference.sampling import Grammar, GrammarKind, SamplingParams
from tests.support import pairs
from tests.support.exact import running
from tests.support.pairs import proposers_of, text_of
from tests.support.wire_fixtures import (
    VOCABULARY,
    candidates,
    connected,
    news,
    rest,
    successor_engine,
)

Begin = Callable[[], TargetSession]
PROMPT, GREEDY = [1, 2, 3], SamplingParams()


@contextmanager
def in_process(engine: Engine) -> Iterator[Begin]:
    """The session makes the forwards itself."""
    yield partial(LocalSession, engine)


@contextmanager
def beside_a_thread(engine: Engine) -> Iterator[Begin]:
    with running(engine):
        yield partial(LocalSession, engine)


@contextmanager
def over_grpc(engine: Engine) -> Iterator[Begin]:
    with connected(engine) as connection:
        yield connection.session


SESSIONS: dict[str, Callable[[Engine], AbstractContextManager[Begin]]] = {
    "in process": in_process,
    "beside a thread": beside_a_thread,
    "over gRPC": over_grpc,
}


@pytest.fixture(params=SESSIONS)
def begin(request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Sessions of a target that counts upwards."""
    with SESSIONS[request.param](successor_engine()) as begin:
        yield begin


@pytest.fixture
def session(begin: Begin) -> Iterator[TargetSession]:
    with closing(begin()) as session:
        yield session


def test_a_text_ends_at_its_length_or_behind_a_stop_id_and_goes_on_when_more_is_ordered(
    session: TargetSession,
) -> None:
    session.open(PROMPT, GREEDY)
    for order, made in (
        (Decode(20), range(4, 21)),
        (Decode(25, frozenset({3, 23})), range(21, 24)),
        (Decode(26), range(24, 27)),
    ):
        session.decode(order)
        assert rest(session) == [*made]


def test_an_order_that_is_said_again_buys_nothing_twice(session: TargetSession) -> None:
    session.open(PROMPT, GREEDY)
    for _ in range(2):
        session.decode(Decode(14))
    assert rest(session) == [*range(4, 15)]
    session.decode(Decode(17))
    assert rest(session) == [15, 16, 17]
    assert session.traffic.nodes == 14


def test_a_target_that_waits_makes_one_forward_for_each_go_at_the_right_base(
    session: TargetSession,
) -> None:
    session.open(PROMPT, GREEDY)
    session.decode(Decode(9, pace=Pace.WAIT))
    for base in (2, 2, 1, 7):
        session.go(base)
    assert news(session).tokens == (4,)
    came = session.receive(0.05)
    assert came is None or not came.tokens  # a sign of life
    session.go(3)
    assert news(session).tokens == (5,)
    assert session.traffic.forwards == 2


def test_candidates_that_come_true_save_forwards(session: TargetSession) -> None:
    session.open(PROMPT, GREEDY)
    session.decode(Decode(9, pace=Pace.WAIT))
    session.propose(candidates(session, 2, [4, 5, 9]))
    session.go(2)
    came = news(session)
    assert (came.tokens, came.proposers) == ((4, 5, 6), (MODEL, MODEL, NOBODY))
    traffic = session.traffic
    assert (traffic.forwards, traffic.nodes, traffic.lone) == (1, 4, 0)


def test_one_session_serves_one_text_after_another_and_adds_up_what_they_cost(
    session: TargetSession,
) -> None:
    session.open(PROMPT, GREEDY)
    session.decode(Decode(5))
    assert rest(session) == [4, 5]
    first = session.traffic.copy()
    assert (first.forwards, first.nodes, first.lone) == (2, 2, 2)
    assert 0 < first.share_seconds <= first.model_seconds
    assert first.prefill_seconds > 0
    session.open([5, 6], GREEDY)
    session.decode(Decode(10))
    assert rest(session) == [*range(7, 15)]
    assert (session.traffic.forwards, session.traffic.nodes) == (10, 10)
    for _ in range(2):
        session.close()


def outcome(session: TargetSession, ask: Callable[[TargetSession], None]) -> list[int]:
    ask(session)
    return rest(session)


REFUSED: dict[str, tuple[Callable[[TargetSession], None], str]] = {
    "no prompt": (lambda session: session.open([], GREEDY), "prompt"),
    "a long prompt": (lambda session: session.open([1] * 50_000, GREEDY), "50000"),
    "a strange token": (lambda session: session.open([1, VOCABULARY], GREEDY), "vocabulary"),
    "a long text": (lambda session: session.decode(Decode(50_001)), "50000"),
    "a rule where none is followed": (
        lambda session: session.open(PROMPT, SamplingParams(presence_penalty=1.0)),
        "--masks",
    ),
    "a strange candidate": (
        lambda session: session.propose(candidates(session, 2, [VOCABULARY])),
        "vocabulary",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_served_is_refused_with_the_value(begin: Begin, wrong: str) -> None:
    ask, shown = REFUSED[wrong]
    with closing(begin()) as session:
        session.open(PROMPT, GREEDY)
        session.decode(Decode(4))
        assert rest(session) == [4]
        with pytest.raises(InvalidRequest, match=shown):
            outcome(session, ask)
    with closing(begin()) as session:
        session.open(PROMPT, GREEDY)
        session.decode(Decode(4))
        assert rest(session) == [4]


@pytest.mark.parametrize("where", SESSIONS)
def test_who_comes_to_a_full_target_hears_that_it_is_busy(where: str) -> None:
    with SESSIONS[where](successor_engine(rows=1, waiting=0)) as begin, closing(begin()) as held:
        held.open(PROMPT, GREEDY)
        held.decode(Decode(4))
        assert rest(held) == [4]
        with closing(begin()) as refused, pytest.raises(Busy, match="1"):
            outcome(refused, lambda one: one.open(PROMPT, GREEDY))


LETTERS = Grammar(GrammarKind.REGEX, "([a-f]{1,5} )*")
SAMPLINGS = [
    GREEDY,
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, seed=2),
    SamplingParams(1.0, top_p=0.9, seed=3),
    SamplingParams(grammar=LETTERS),
    SamplingParams(0.7, seed=1, grammar=LETTERS, repetition_penalty=1.2, logit_bias=((70, -2.5),)),
    SamplingParams(1.0, seed=2, presence_penalty=0.7, frequency_penalty=0.3, min_p=0.05),
]


@pytest.mark.covering(2)
@pytest.mark.parametrize("where", list(SESSIONS)[1:])
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
@pytest.mark.parametrize("pace", Pace, ids=lambda pace: pace.name)
@pytest.mark.parametrize("draft", ["close", "unrelated", "none"])
def test_the_text_is_that_of_the_target_alone_in_process(
    where: str, params: SamplingParams, pace: Pace, draft: str
) -> None:
    engine = pairs.engine(pairs.decoder(1), rules=pairs.grammars())
    prompt = [5, 17, 250, 3, 99]
    alone = text_of(prompt, params, LocalSession(engine), Decode(29))
    assert len(alone) == 24
    with SESSIONS[where](engine) as begin:
        session, proposers = begin(), proposers_of(draft, pace)
        made = text_of(prompt, params, session, Decode(29, pace=pace), proposers)
        assert made == alone
        saves = draft == "close" and pace is Pace.WAIT and params.greedy
        assert session.traffic.forwards <= (18 if saves else 24)


@pytest.mark.parametrize("where", SESSIONS)
@pytest.mark.parametrize("likeliest", [0, 3])
def test_each_token_comes_with_its_log_probability_and_the_prompts_come_first(
    where: str, likeliest: int
) -> None:
    params = SamplingParams(grammar=LETTERS, logprobs=likeliest, prompt_logprobs=True)
    engine = pairs.engine(pairs.decoder(1), rules=pairs.grammars())
    with SESSIONS[where](engine) as begin, closing(begin()) as session:
        session.open([5, 17, 250, 3], params)
        session.decode(Decode(24))
        tokens, scores = list[int](), list[TokenLogProb]()
        while len(tokens) < 20:
            came = news(session)
            assert len(session.prompt_logprobs) == 3
            tokens += came.tokens
            scores += came.logprobs
    assert len(scores) == 20
    for token, score in zip(tokens, scores, strict=True):
        assert len(score.ids) == len(score.values) == likeliest
        assert not likeliest or (score.ids[0], score.values[0]) == (token, score.value)
    for score in session.prompt_logprobs:
        assert len(score.ids) == likeliest
        assert score.value < 0
