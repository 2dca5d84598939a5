"""Rounds sent before the verdict of the one before them: right ones are verified, dead ones vanish, and the text is the target's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from grpc_comm.client import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.remote import Patience, RemoteVerifier
from inference.adaptive import decode_adaptive
from inference.decode import Superseded
from inference.errors import OutriderError
from inference.pilot import Pilot
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.link import Shape, ShapedLink, shaped_link
from tests import pairs
from tests.test_adaptive import adaptive, knowledge, navigator
from tests.test_lossless import SAMPLINGS, alone
from tests.wire_fixtures import WAIT, background, connected, successor_engine


@pytest.fixture(scope="module")
def successor() -> Iterator[Connection]:
    """A target that chooses token + 1 after every token."""
    with connected(successor_engine(2)) as connection:
        yield connection


def begun(connection: Connection, root: int = 10) -> RemoteVerifier:
    verifier = connection.verifier()
    verifier.open([1, root], SamplingParams()).result(WAIT)
    return verifier


def test_a_round_sent_ahead_is_verified_when_the_one_before_it_comes_out_as_assumed(
    successor: Connection,
) -> None:
    with closing(begun(successor)) as verifier:
        first = verifier.submit(TokenTree.chain([10, 11]))
        second = verifier.submit(TokenTree.chain([12, 13, 99]), [11, 12])
        third = verifier.submit(TokenTree.chain([14, 15]), [13, 14])
        assert [one.result(WAIT) for one in (first, second, third)] == [
            ((1,), 12),
            ((1,), 14),
            ((1,), 16),
        ]


def test_dead_rounds_are_superseded_and_the_session_goes_on(successor: Connection) -> None:
    with closing(begun(successor)) as verifier:
        first = verifier.submit(TokenTree.chain([10, 50]))
        dead = [
            verifier.submit(TokenTree.chain([51, 52]), [50, 51]),
            verifier.submit(TokenTree.chain([53]), [52, 53]),
        ]
        assert first.result(WAIT) == ((), 11)
        for future in dead:
            with pytest.raises(Superseded):
                future.result(WAIT)
        assert verifier.submit(TokenTree.chain([11, 12])).result(WAIT) == ((1,), 13)


def test_a_round_assumed_wrongly_after_the_verdict_is_not_even_sent(successor: Connection) -> None:
    with closing(begun(successor)) as verifier:
        verifier.submit(TokenTree.chain([10])).result(WAIT)
        before = verifier.traffic.bytes_up
        with pytest.raises(Superseded):
            verifier.submit(TokenTree.chain([50]), [50]).result(WAIT)
        assert verifier.traffic.bytes_up == before


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_assumed_every_token_comes_once(successor: Connection, seed: int) -> None:
    """A draft that errs at random, with up to four rounds under way."""
    rng = random.Random(seed)
    with closing(begun(successor)) as verifier:
        root, text = 10, list[int]()
        while len(text) < 100:
            flights, last, assumed = [], root, None
            for _ in range(rng.randint(1, 4)):
                tokens = [
                    last,
                    *(
                        last + 1 + step if rng.random() < 0.9 else 900
                        for step in range(rng.randint(0, 3))
                    ),
                ]
                tokens = tokens[: tokens.index(900) + 1] if 900 in tokens else tokens
                flights.append((tokens, verifier.submit(TokenTree.chain(tokens), assumed)))
                following = tokens[-1] + 1
                assumed, last = [*tokens[1:], following], following
            for tokens, future in flights:
                try:
                    path, following = future.result(WAIT)
                except Superseded:
                    break
                text += [*(tokens[node] for node in path), following]
                root = following
        assert text == list(range(11, 11 + len(text)))


def test_a_round_ahead_that_is_not_due_is_dropped_and_one_that_is_not_ahead_refused(
    successor: Connection,
) -> None:
    """What a hostile or confused client may send: no answer, or an error; never another session's loss."""
    with closing(begun(successor)) as other:
        assert other.submit(TokenTree.chain([10])).result(WAIT) == ((), 11)
        with closing(begun(successor)) as verifier:
            for number, base in ((7, 2), (0, 60_000), (0, 1), (2**32 - 1, 2)):
                verifier._live._send(
                    pb.ClientMessage(
                        round=pb.Round(number=number, base_length=base, tokens=[10], ahead=True)
                    )
                )
            assert verifier.submit(TokenTree.chain([10, 11])).result(WAIT) == ((1,), 12)
            verifier._live._send(
                pb.ClientMessage(round=pb.Round(number=7, base_length=4, tokens=[12]))
            )
            with pytest.raises(OutriderError):
                verifier.submit(TokenTree.chain([12])).result(WAIT)
        assert other.submit(TokenTree.chain([11])).result(WAIT) == ((), 12)


class Far(NamedTuple):
    """A target behind a slow link."""

    connection: Connection
    link: ShapedLink


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    patience = Patience(WAIT, lambda line: None)
    with (
        background(pairs.engine(pairs.decoder(1))) as server,
        shaped_link(str(server.address), Shape(delay_ms=15)) as link,
        connect(link.address, patience=patience) as connection,
    ):
        yield Far(connection, link)


class Eager(Pilot):
    """Sends whatever it can before the verdict."""

    def sends_onward(self, chance: float, tokens: float) -> bool:
        return tokens > 1


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize(
    "draft",
    [pairs.decoder(1), pairs.perturbed(1, 0.02), pairs.decoder(99, layers=1)],
    ids=["same", "close", "unrelated"],
)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_text_made_with_rounds_ahead_is_the_targets_own(
    far: Far, params: SamplingParams, draft: pairs.Decoder, cut: bool
) -> None:
    prompt, tokens = [7, 3, 30], 30
    reference = alone(far.connection.verifier(), prompt, params, tokens)
    known = knowledge()
    drafter = adaptive(draft, known)
    drafter.pilot = Eager(known, clock=drafter.pilot.clock)
    text, verifier = list[int](), far.connection.verifier()
    with closing(verifier), closing(drafter):
        for number, step in enumerate(
            decode_adaptive(
                prompt, params, drafter, verifier, navigator(known), tokens, frozenset()
            )
        ):
            text += step.tokens
            if cut and number == 1:
                far.link.cut()
    assert text == reference
