"""A target far away: it does not wait for acknowledgements, a reader that stays behind holds it
back, and what it must not say is not believed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.received import MOST_UNREAD
from grpc_comm.observability.statistics import Statistics
from grpc_comm.proto import verifier_pb2 as pb
from inference.backends import Segment
from inference.engine.engine import Engine
from inference.errors import Mismatch, OutriderError
from inference.order import MOST_CREDIT, Decode
from inference.sampling import SamplingParams
from inference.tree import IntArray
from outrider.link.emulated_link import LinkShape, shaped_link
from tests.support.rogue_target import OPENED, rogue, tokens
from tests.support.wire_fixtures import (
    VOCABULARY,
    WAIT,
    Successor,
    background,
    candidates,
    eventually,
    opened,
    rest,
    successor_engine,
    until_it_fails,
)


class Paced(Successor):
    """A forward takes some milliseconds."""

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        time.sleep(0.004)
        return super().choose(segments)


@pytest.mark.parametrize("delay", [0, 40, 150])
def test_a_text_without_any_draft_never_stands_still_for_want_of_credit(delay: float) -> None:
    engine = Engine(Paced(2), sequence_length=50_000, max_tree_nodes=32, vocabulary=VOCABULARY)
    statistics = Statistics()
    with (
        background(engine, listener=statistics) as server,
        shaped_link(str(server.address), LinkShape(delay_ms=delay)) as link,
        connect(link.address) as connection,
    ):
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(3 + 512))
        assert rest(session) == list(range(4, 516))
        assert [model.credit_stalls for model in statistics.models.values()] == [0]
        assert session.traffic.messages_up < 60
        session.close()


def test_a_reader_that_stays_behind_holds_the_target() -> None:
    engine = successor_engine()
    with background(engine) as server, connect(str(server.address)) as connection:
        session = opened(connection)
        session.decode(Decode(40_000))
        held = engine.sessions[0]
        eventually(lambda: held.length > 3 + MOST_UNREAD and held.allowed == 0)
        time.sleep(0.1)
        assert held.allowed == 0
        assert held.length <= 3 + MOST_UNREAD + 2 * MOST_CREDIT
        session.receive(WAIT)
        eventually(lambda: held.length > 3 + MOST_UNREAD + 2 * MOST_CREDIT)
        session.close()


def test_candidates_that_the_link_does_not_take_are_dropped() -> None:
    with (
        background(successor_engine()) as server,
        shaped_link(str(server.address), LinkShape(mbit=0.05)) as link,
        connect(link.address, timeout=WAIT) as connection,
    ):
        session = opened(connection)
        for _ in range(500):
            session.propose(candidates(session, 2, range(4, 1_000)))
        assert session.traffic.messages_up < 500
        link.cut()


ROGUES: dict[str, list[pb.ServerMessage]] = {
    "a gap": [OPENED, tokens(5, 6)],
    "another token than before": [OPENED, tokens(3, 4, 5), tokens(4, 9)],
    "a token outside the vocabulary": [OPENED, tokens(3, VOCABULARY)],
    "more than was asked for": [OPENED, tokens(3, *range(4, 99))],
    "tokens after the end": [OPENED, tokens(3, 4, end=pb.Tokens.LIMIT), tokens(4, 5)],
    "tokens before the session is open": [tokens(3, 4)],
    "another prompt": [pb.ServerMessage(opened=pb.Opened(length=2))],
    "more than the prompt": [pb.ServerMessage(opened=pb.Opened(length=4))],
    "an unknown end": [OPENED, tokens(3, 4, end=77)],
    "proposers of other tokens": [OPENED, tokens(3, 4, proposers=b"\0\0")],
    "sums that shrink": [OPENED, tokens(3, 4, nodes=9), tokens(4, 5, nodes=8)],
    "an empty message": [OPENED, pb.ServerMessage()],
}


@pytest.mark.parametrize("said", ROGUES)
@pytest.mark.parametrize("patience", [0.0, WAIT])
def test_a_target_that_says_what_cannot_be_is_named_and_not_believed(
    said: str, patience: float
) -> None:
    with (
        rogue(ROGUES[said]) as address,
        connect(str(address), patience=Patience(patience)) as connection,
    ):
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(60))
        with pytest.raises(Mismatch, match=f"the target at {address} "):
            until_it_fails(session)


def test_a_target_that_goes_away_cannot_write_to_the_terminal() -> None:
    notices: list[str] = []
    words = "\x1b[2J\x07bye\nnow"
    away = pb.ServerMessage(go_away=pb.GoAway(reason=words))
    with (
        rogue([OPENED, away, tokens(3, 4, end=pb.Tokens.DRAINED)]) as address,
        connect(str(address), patience=Patience(0.5, notices.append)) as connection,
    ):
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(60))
        with pytest.raises(OutriderError):
            until_it_fails(session)
    assert "goes away: ?[2J?bye?now; looking for it again" in notices[0]


def test_numbers_without_sense_do_no_harm() -> None:
    greatest = 2**64 - 1
    wild = tokens(
        3, 4, known=2**32 - 1, held=2**32 - 1, nodes=greatest, model_microseconds=greatest,
        room=2**32 - 1, end=pb.Tokens.LIMIT,
    )  # fmt: skip
    opened = pb.Opened(
        length=3, queue_seconds=float("nan"), prefill_seconds=-1.0, lease_seconds=float("nan"),
        tree_nodes=2**32 - 1, candidates=2**32 - 1,
    )  # fmt: skip
    with (
        rogue([pb.ServerMessage(opened=opened), wild]) as address,
        connect(str(address)) as connection,
    ):
        session = connection.session()
        session.open([1, 2, 3], SamplingParams())
        session.decode(Decode(60))
        assert rest(session) == [4]
        assert session.room <= session.candidates <= 1024
