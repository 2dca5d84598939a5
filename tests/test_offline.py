"""While the target is away the draft goes on alone; when it is back, the text is the target's own, from the first token on."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from grpc_comm.client import connect
from grpc_comm.remote import Patience
from grpc_comm.server import BackgroundServer
from grpc_comm.transport import Address
from inference.errors import Unavailable
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.offline import Unverified, decode_offline
from inference.policy import BestFirst
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.completion import Piece, Request, speculate_offline
from outrider.models import EMBEDDED
from tests.pairs import decoder, drafter, engine, perturbed
from tests.wire_fixtures import background

PROMPT, TOKENS = [5, 17, 250, 3, 99], 40


def expected(params: SamplingParams) -> list[int]:
    verifier = LocalVerifier(engine(decoder(1)))
    verifier.open(PROMPT, params).result()
    return list(verifier.generate(TOKENS, frozenset()))


def interrupted(draft: Decoder, params: SamplingParams, alone: int) -> tuple[list[int], list[int]]:
    """The verified tokens and the unverified ones, when the target goes away after two rounds and comes back `alone` tokens later."""
    server, verified, guesses = background(engine(decoder(1))), list[int](), list[int]()
    with connect(str(server.address), patience=Patience(20.0)) as connection:
        verifier = connection.verifier()
        rounds = 0
        for made in decode_offline(
            PROMPT, params, drafter(draft, BestFirst(8, 3)), verifier, TOKENS, frozenset()
        ):
            if isinstance(made, Unverified):
                guesses.append(made.token)
                if len(guesses) == alone:
                    server = returned(server.address)
                continue
            verified += made.tokens
            rounds += 1
            if rounds == 2:
                server.stop()
        verifier.close()
    server.stop()
    return verified, guesses


def returned(address: Address) -> BackgroundServer:
    """Another target, which knows nothing of any session, on the same port."""
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
    verified, guesses = interrupted(draft, params, alone=6)
    assert verified[:TOKENS] == expected(params)
    assert len(guesses) >= 6


def test_what_nobody_came_back_to_verify_is_marked() -> None:
    server, shown = background(engine(decoder(1))), list[Piece]()
    request = Request(0, "", PROMPT, SamplingParams(), TOKENS, frozenset())

    def show(piece: Piece) -> None:
        shown.append(piece)
        if len(shown) == 2:
            server.stop()

    with connect(str(server.address), patience=Patience(2.0)) as connection:
        tokenizer = Tokenizer(Path(EMBEDDED) / "target")
        done = speculate_offline(
            request,
            drafter(perturbed(1, 0.02), BestFirst(8, 3)),
            connection.verifier(),
            tokenizer,
            show,
            Event(),
        )
    assert done.finish_reason == "unverified"
    assert (
        done.unverified_text == "".join(piece.text for piece in shown if not piece.verified) != ""
    )
    assert done.token_ids == expected(SamplingParams())[: len(done.token_ids)]
    assert done.text == "".join(piece.text for piece in shown if piece.verified)


def test_a_target_that_was_never_there_is_an_error() -> None:
    server = background(engine(decoder(1)))
    with connect(str(server.address), patience=Patience(0.5)) as connection:
        server.stop()
        with pytest.raises(Unavailable):
            next(
                decode_offline(
                    PROMPT,
                    SamplingParams(),
                    drafter(decoder(2), BestFirst(8, 3)),
                    connection.verifier(),
                    TOKENS,
                    frozenset(),
                )
            )
