"""While the target is away the draft goes on alone; when it is back, the text is the target's
own, from the first token on.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address
from inference.backends.eager import EagerModel
from inference.drafters.model_proposer import ROOM, ModelProposer
from inference.engine.local_session import LocalSession
from inference.link_times import LinkTimes
from inference.model.decoder import Decoder
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import DraftTimes, LatencyModel
from outrider.completion import Broken, Completion, Piece, Request, complete
from outrider.live_text import silent
from outrider.models import EMBEDDED
from tests.support.pairs import SEQUENCE_LENGTH, decoder, engine, perturbed
from tests.support.wire_fixtures import background

PROMPT, TOKENS = [5, 17, 250, 3, 99], 40
TOKENIZER = Tokenizer(Path(EMBEDDED) / "target")


def request(params: SamplingParams) -> Request:
    return Request(0, "", PROMPT, params, TOKENS, frozenset())


def expected(params: SamplingParams) -> list[int]:
    session = LocalSession(engine(decoder(1)))
    return complete(request(params), session, [], TOKENIZER, silent, Event()).token_ids


def proposer(draft: Decoder) -> Proposer:
    model = EagerModel(draft, rows=1, capacity=SEQUENCE_LENGTH + ROOM, max_nodes=128)
    times = LatencyModel({(1, 1): 0.01})
    known = Knowledge(DraftTimes({1: 0.002}), times, LinkTimes(), read_acceptance())
    return ModelProposer(model, 0, known, Prices())


def interrupted(
    draft: Decoder, params: SamplingParams, outage: Outage, patience: float
) -> Completion:
    """A text, made through this outage."""
    with connect(str(outage.server.address), patience=Patience(patience)) as connection:
        return complete(
            request(params), connection.session(), [proposer(draft)], TOKENIZER, outage, Event(),
            offline=True,
        )  # fmt: skip


class Outage:
    """Shows pieces; stops the target after the first verified ones, and lets another one, which
    knows nothing of any session, take its port after so many guesses.
    """

    def __init__(self, back_after: int | None) -> None:
        self.server, self._back_after = background(engine(decoder(1))), back_after
        self.pieces, self.guesses, self._stopped = list[Piece](), 0, False

    def __call__(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if piece.verified and not self._stopped:
            self.server.stop()
            self._stopped = True
        self.guesses += not piece.verified
        if self.guesses == self._back_after and not piece.verified:
            self.server = returned(self.server.address)


def returned(address: Address) -> BackgroundServer:
    return background(engine(decoder(1)), address=address)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)], ids=str
)
@pytest.mark.parametrize(
    "draft", [perturbed(1, 0.02), decoder(99, layers=1)], ids=["close", "unrelated"]
)
def test_after_an_absence_the_text_is_the_targets_own(
    draft: Decoder, params: SamplingParams
) -> None:
    outage = Outage(back_after=3)
    done = interrupted(draft, params, outage, 20.0)
    outage.server.stop()
    assert done.token_ids == expected(params)
    assert (done.finish_reason, done.unverified_text) == ("length", "")
    assert done.text == "".join(piece.text for piece in outage.pieces if piece.verified)
    assert done.reopenings == 1
    assert outage.guesses >= 3


def test_what_nobody_came_back_to_verify_is_marked() -> None:
    outage = Outage(back_after=None)
    done = interrupted(perturbed(1, 0.02), SamplingParams(), outage, 2.0)
    assert done.finish_reason == "unverified"
    last = max(index for index, piece in enumerate(outage.pieces) if piece.verified)
    assert done.unverified_text == "".join(piece.text for piece in outage.pieces[last + 1 :]) != ""
    assert done.token_ids == expected(SamplingParams())[: len(done.token_ids)]
    assert done.text == "".join(piece.text for piece in outage.pieces if piece.verified)


def test_a_target_that_was_never_there_is_an_error() -> None:
    server = background(engine(decoder(1)))
    with connect(str(server.address), patience=Patience(0.5)) as connection:
        server.stop()
        with pytest.raises(Broken) as broken:
            complete(
                request(SamplingParams()), connection.session(), [proposer(decoder(2))],
                TOKENIZER, silent, Event(),
            )  # fmt: skip
    assert (broken.value.done.token_ids, broken.value.done.finish_reason) == ([], "error")
