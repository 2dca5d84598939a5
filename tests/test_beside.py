"""A session that goes on with the draft at its target: the same text as before, whatever is asked, broken or left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from grpc_comm.client import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.remote import Patience
from inference.backends import Segment
from inference.backends.eager import EagerModel
from inference.drafters.classic import ClassicDrafter
from inference.drafters.model import ModelDrafter
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.errors import InvalidRequest, LimitExceeded
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.policy import BestFirst, Budget, Chain, Policy, Static
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.tree import IntArray
from outrider.link import shaped_link
from tests import pairs
from tests.hostile import digest, eventually, resume
from tests.test_streams import Raw
from tests.wire_fixtures import (
    WAIT,
    background,
    connected,
    opening,
    raw_stub,
    status,
    successor_engine,
)

PROMPT, TOKENS, MANY = [5, 17, 250, 3, 99], 60, 120
NEVER_STOP: frozenset[int] = frozenset()
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)]
ROOM = 40


class Counting(EagerModel):
    """A target that counts the prompt tokens which it prefills."""

    prefilled = 0

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self.prefilled += sum(
            len(segment.tokens) for segment in segments if len(segment.pick) < len(segment.tokens)
        )
        return super().choose(segments)


def counting_engine(rows: int = 2) -> Engine:
    model = Counting(pairs.decoder(1), rows=rows, capacity=pairs.SEQUENCE_LENGTH + 64, max_nodes=64)
    return Engine(
        model, sequence_length=pairs.SEQUENCE_LENGTH, max_tree_nodes=64, vocabulary=pairs.VOCABULARY
    )


def pool(draft: Decoder, rows: int = 2, room: int = ROOM) -> DraftPool:
    model = EagerModel(draft, rows=rows, capacity=pairs.SEQUENCE_LENGTH + room, max_nodes=64)
    return DraftPool(model, Chain(2), room)


@contextmanager
def host(drafts: DraftPool | None, **options: Any) -> Iterator[tuple[Engine, Connection]]:
    engine = counting_engine()
    with connected(engine, drafts=drafts, **options) as connection:
        yield engine, connection


@pytest.fixture(scope="module", params=["close", "unrelated"])
def fused(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Connection]]:
    """A host with a draft that is a little off its target, or has nothing to do with it."""
    with host(
        pool(pairs.perturbed(1, 0.02) if request.param == "close" else pairs.decoder(99, layers=1))
    ) as served:
        yield served


def expected(params: SamplingParams, tokens: int = TOKENS) -> list[int]:
    """The target's own decoding, in process."""
    verifier = LocalVerifier(pairs.engine(pairs.decoder(1), rows=1))
    verifier.open(PROMPT, params).result()
    return list(verifier.generate(tokens, NEVER_STOP))


class Client:
    """A session with a draft of its own, whose rounds and continuations make `text`."""

    def __init__(self, connection: Connection, params: SamplingParams) -> None:
        self.verifier, self.text = connection.verifier(), list[int]()
        self._params, self._draft = (
            params,
            EagerModel(pairs.perturbed(1, 0.03), rows=1, capacity=600, max_nodes=64),
        )
        self.verifier.open(PROMPT, params).result(WAIT)

    def rounds(self, count: int) -> None:
        drafter = ModelDrafter(self._draft, BestFirst(6, 3))
        drafter.open([*PROMPT, *self.text], self._params)
        for _ in range(count):
            tree = drafter.draft(
                [*PROMPT, *self.text][-1], Budget(self.verifier.tree_budget - 1, 20)
            )
            verdict = self.verifier.submit(tree).result(WAIT)
            drafter.commit(tree, verdict)
            self.text += [*tree.tokens[list(verdict.path)].tolist(), verdict.next_token]

    def goes_on(
        self, tokens: int, policy: Policy | None, stop_ids: frozenset[int] = NEVER_STOP
    ) -> None:
        self.text += self.verifier.generate(
            tokens, stop_ids, fused=policy is not None, policy=policy
        )

    def goes_on_until(self, enough: int, policy: Policy | None) -> int:
        """How many tokens came until the target, which might have made MANY, heard that so many are enough."""
        before, fused = len(self.text), policy is not None
        for token in self.verifier.generate(
            MANY,
            NEVER_STOP,
            fused=fused,
            policy=policy,
            enough=lambda: len(self.text) >= before + enough,
        ):
            self.text.append(token)
        return len(self.text) - before


@pytest.mark.parametrize("policy", [None, Chain(3)], ids=str)
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_target_that_is_told_it_is_enough_ends_and_the_session_goes_on(
    fused: tuple[Engine, Connection], params: SamplingParams, policy: Policy | None
) -> None:
    client = Client(fused[1], params)
    for _ in range(3):
        assert 5 <= client.goes_on_until(5, policy) < MANY
        client.rounds(1)
    client.verifier._live.halt()  # where there is nothing to end
    client.rounds(1)
    client.verifier.close()
    assert client.text == expected(params, len(client.text))


@pytest.mark.parametrize("policy", [Chain(3), BestFirst(8, 3)], ids=str)
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_rounds_and_continuations_by_either_draft_are_one_text(
    fused: tuple[Engine, Connection], params: SamplingParams, policy: Policy
) -> None:
    client = Client(fused[1], params)
    client.rounds(4)
    client.goes_on(13, policy)
    client.rounds(3)
    client.goes_on(5, None)
    client.goes_on(1, policy)
    client.goes_on(TOKENS - len(client.text), policy)
    assert client.text[:TOKENS] == expected(params)
    client.verifier.close()


def test_the_target_prefills_nothing_for_it(fused: tuple[Engine, Connection]) -> None:
    engine, connection = fused
    client = Client(connection, SamplingParams())
    client.rounds(2)
    assert isinstance(engine.model, Counting)
    before, seconds = engine.model.prefilled, client.verifier.traffic.prefill_seconds
    client.goes_on(20, Chain(3))
    client.rounds(1)
    assert (engine.model.prefilled, client.verifier.traffic.prefill_seconds) == (before, seconds)
    assert client.verifier.traffic.resumes == client.verifier.traffic.reopenings == 0
    client.verifier.close()


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_stop_id_ends_it_within_a_round_and_the_session_goes_on_from_there(
    fused: tuple[Engine, Connection], params: SamplingParams
) -> None:
    whole = expected(params)
    stop = whole[9]
    client = Client(fused[1], params)
    client.goes_on(TOKENS, BestFirst(8, 3), frozenset({stop}))
    assert client.text == whole[: whole.index(stop) + 1]
    client.rounds(2)
    client.goes_on(TOKENS - len(client.text), BestFirst(8, 3))
    assert client.text[:TOKENS] == whole
    client.verifier.close()


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_stream_cut_in_the_middle_is_resumed_and_no_token_is_lost(params: SamplingParams) -> None:
    engine = counting_engine()
    drafts = pool(pairs.perturbed(1, 0.02))
    with ExitStack() as stack:
        server = stack.enter_context(background(engine, drafts=drafts))
        link = stack.enter_context(shaped_link(str(server.address)))
        client = Client(stack.enter_context(connect(link.address, patience=Patience(WAIT))), params)
        client.rounds(1)
        for number, token in enumerate(
            client.verifier.generate(
                TOKENS - len(client.text), NEVER_STOP, fused=True, policy=Chain(3)
            )
        ):
            client.text.append(token)
            if number in (4, 20):
                link.cut()
        assert client.text == expected(params)
        assert client.verifier.traffic.resumes >= 1
        assert client.verifier.traffic.reopenings == 0
        client.rounds(1)


def test_a_client_that_leaves_early_frees_everything() -> None:
    drafts = pool(pairs.decoder(99, layers=1), rows=1)
    with host(drafts, lease_seconds=1.0) as (engine, connection):
        for _ in range(3):
            client = Client(connection, SamplingParams())
            leaving = client.verifier.generate(TOKENS, NEVER_STOP, fused=True, policy=Chain(2))
            next(iter(leaving))
            client.verifier.close()
        client = Client(connection, SamplingParams())
        client.goes_on(TOKENS, Chain(2))  # the draft's only row is free
        assert client.text == expected(SamplingParams())
        client.verifier.close()
        eventually(lambda: engine.free_rows == 2 and engine.sessions == [])


def test_who_waits_for_a_row_of_the_draft_can_leave() -> None:
    drafts = pool(pairs.decoder(99, layers=1), rows=1)
    with host(drafts, lease_seconds=1.0) as (engine, connection), ThreadPoolExecutor(1) as asking:
        client = Client(connection, SamplingParams())
        with drafts.drafter():
            first = asking.submit(
                next, client.verifier.generate(TOKENS, NEVER_STOP, fused=True, policy=Chain(2))
            )
            time.sleep(0.1)  # it waits by now; nothing is lost where it does not yet
            client.verifier.close()
            assert first.exception(WAIT) is not None
            eventually(lambda: engine.sessions == [])
        client = Client(connection, SamplingParams())
        client.goes_on(TOKENS, Chain(2))
        assert client.text == expected(SamplingParams())


def test_what_an_older_stream_asked_for_ends_when_a_newer_one_comes() -> None:
    with (
        background(
            pairs.engine(pairs.decoder(1)), drafts=pool(pairs.decoder(99, layers=1))
        ) as server,
        raw_stub(server.address) as stub,
    ):
        older = Raw(stub, opening(prompt=PROMPT), continuing(PROMPT, 400, 2))
        opened = older.answer().opened
        first = older.answer().tokens
        assert not first.last
        newer = Raw(stub, resume(opened))
        assert newer.answer().opened.length > len(PROMPT)
        text = [*PROMPT]
        newer.send(continuing(PROMPT, 40, 2))
        while not (tokens := newer.answer().tokens).last:
            text += tokens.ids
        assert len(text) + len(tokens.ids) == len(PROMPT) + 40
        newer.cut()


def continuing(text: Sequence[int], tokens: int, chain: int) -> pb.ClientMessage:
    return pb.ClientMessage(
        generate=pb.Continue(
            max_tokens=tokens,
            base_length=len(text),
            digest=digest(text),
            fused=True,
            shape=pb.Shape(chain=chain),
        )
    )


def test_each_round_is_a_message_that_says_what_was_drafted() -> None:
    drafts = pool(pairs.perturbed(1, 0.02))
    with background(counting_engine(), drafts=drafts) as server, raw_stub(server.address) as stub:
        stream = Raw(stub, opening(prompt=PROMPT), continuing(PROMPT, TOKENS, 3))
        assert stream.answer().opened.length == len(PROMPT)
        rounds = [stream.answer().tokens]
        while not rounds[-1].last:
            rounds.append(stream.answer().tokens)
        assert [token for tokens in rounds for token in tokens.ids] == expected(SamplingParams())
        assert all(len(tokens.ids) - 1 <= tokens.drafted <= 3 for tokens in rounds)
        assert len(rounds) < TOKENS
        assert all(tokens.model_microseconds > 0 for tokens in rounds)
        stream.cut()


def test_a_host_without_a_draft_refuses_in_words() -> None:
    with connected(successor_engine()) as connection:
        verifier = connection.verifier()
        verifier.open([1, 2, 3], SamplingParams()).result(WAIT)
        with pytest.raises(InvalidRequest, match="no draft beside it"):
            next(iter(verifier.generate(5, NEVER_STOP, fused=True, policy=Chain(2))))


def test_a_draft_that_makes_other_texts_is_not_lent_to_a_session() -> None:
    model = EagerModel(
        pairs.decoder(99, layers=1), rows=1, capacity=pairs.SEQUENCE_LENGTH + ROOM, max_nodes=64
    )
    with host(DraftPool(model, Chain(2), ROOM, ClassicDrafter, seeded=False)) as (_, connection):
        client = Client(connection, SamplingParams(0.7, seed=2))
        client.rounds(2)
        with pytest.raises(InvalidRequest, match="not the seeded one"):
            client.goes_on(5, Chain(2))
        assert list(
            connection.generate(
                PROMPT, SamplingParams(), 5, NEVER_STOP, fused=True, traffic=Traffic()
            )
        )


SHAPES = [
    (pb.Shape(), "chain, or nodes and depth"),
    (pb.Shape(chain=2, nodes=4, depth=2), "chain, or nodes and depth"),
    (pb.Shape(chain=2, depth=2), "chain, or nodes and depth"),
    (pb.Shape(nodes=4), "chain, or nodes and depth"),
    (pb.Shape(depth=4), "chain, or nodes and depth"),
    (pb.Shape(chain=64), "at most 63"),
    (pb.Shape(nodes=2**32 - 1, depth=1), "at most 63"),
    (pb.Shape(nodes=20, depth=3), f"room for {ROOM}"),
    (pb.Shape(nodes=2, depth=2**32 - 1), f"room for {ROOM}"),
    (pb.Shape(chain=ROOM + 1), f"room for {ROOM}"),
]


@pytest.mark.parametrize(
    ("shape", "words"), SHAPES, ids=lambda value: str(value).replace("\n", " ")
)
def test_a_shape_that_means_nothing_or_has_no_room_is_refused(shape: pb.Shape, words: str) -> None:
    with (
        background(
            pairs.engine(pairs.decoder(1)), drafts=pool(pairs.decoder(99, layers=1))
        ) as server,
        raw_stub(server.address) as stub,
    ):
        request = pb.GenerateRequest(
            open=opening(prompt=PROMPT).open, max_tokens=5, fused=True, shape=shape
        )
        goes_on = pb.Continue(
            max_tokens=5, base_length=len(PROMPT), digest=digest(PROMPT), fused=True, shape=shape
        )
        for call in _both(stub, request, goes_on):
            code, details = status(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert words in details
        request.fused, goes_on.fused = False, False
        for call in _both(stub, request, goes_on):
            assert "goes with fused" in status(call)[1]


def _both(stub: Any, request: pb.GenerateRequest, goes_on: pb.Continue) -> list[Any]:
    """A text of its own, and a session that goes on."""
    messages = [opening(prompt=PROMPT), pb.ClientMessage(generate=goes_on)]
    return [stub.Generate(request, timeout=WAIT), stub.Session(iter(messages), timeout=WAIT)]


@pytest.mark.parametrize("tokens", [0, pairs.SEQUENCE_LENGTH])
def test_more_tokens_than_fit_are_refused(tokens: int) -> None:
    with (
        background(
            pairs.engine(pairs.decoder(1)), drafts=pool(pairs.decoder(99, layers=1))
        ) as server,
        raw_stub(server.address) as stub,
    ):
        code, details = status(
            stub.Session(
                iter([opening(prompt=PROMPT), continuing(PROMPT, tokens, 2)]), timeout=WAIT
            )
        )
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "max_tokens must be 1" in details or "do not fit" in details


@pytest.mark.parametrize(
    "policy", [Chain(0), Static((0.5, 0.2), 4, 2), BestFirst(8, 3, width=2)], ids=str
)
def test_a_policy_that_the_wire_cannot_carry_is_refused_here(
    fused: tuple[Engine, Connection], policy: Policy
) -> None:
    client = Client(fused[1], SamplingParams())
    with pytest.raises(InvalidRequest, match="can be asked for"):
        client.goes_on(5, policy)


def test_a_pool_refuses_a_policy_of_its_own_that_has_no_room() -> None:
    with pytest.raises(LimitExceeded, match="room for 40"):
        DraftPool(
            EagerModel(pairs.decoder(99, layers=1), rows=1, capacity=64, max_nodes=64),
            BestFirst(20, 3),
            ROOM,
        )
