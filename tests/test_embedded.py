"""The pair that ships here: lossless with many texts at once, and as good as its card says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from grpc_comm.client.connection import Connection, connect
from grpc_comm.server.server import BackgroundServer, Target
from inference.backends.eager import EagerModel
from inference.drafters.growing_proposer import Draft
from inference.drafters.round_proposer import BestFirst, Chain, RoundProposer
from inference.loop.draft_thread import inline
from inference.loop.draft_tuning import TUNING
from inference.model.decoder import Decoder
from inference.order import Pace
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from outrider.text.completion import Completion, Request, complete, silent
from tests.support.equality import NearTies, assert_same_text
from tests.support.models import loaded
from tests.support.pairs import knowledge

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, top_p=0.9, seed=2).on_the_wire(),
    SamplingParams(1.0, seed=3),
]
LONG = (
    "import os\nimport sys\n\n\ndef walk(top):\n    for name in sorted(os.listdir(top)):\n        "
    "path = os.path.join(top, name)\n" * 8
)
TEXTS = ["\n", "def main(argv):\n", "class Node:\n", LONG]


@pytest.fixture(scope="module")
def served() -> Target:
    return load_target(TargetRole(port=0, batch=2))


@pytest.fixture(scope="module")
def connection(served: Target) -> Iterator[Connection]:
    with BackgroundServer(served) as server, connect(str(server.address)) as connected:
        yield connected


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(EMBEDDED / "target")


def load(kind: str, tokenizer: Tokenizer) -> Decoder:
    return loaded(EMBEDDED / kind, 1024, tokenizer.vocabulary)


PROPOSERS: list[Callable[[EagerModel], Proposer]] = [
    lambda model: Draft(model).proposer(0, knowledge(nodes=64), Prices()),
    lambda model: RoundProposer(model, Chain(4), room=63),
    lambda model: RoundProposer(model, BestFirst(16, 6), room=63),
]


def completed(
    connection: Connection,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    proposers: Sequence[Proposer] = (),
) -> Completion:
    asked = Request(0, "", prompt, params, tokens, frozenset())
    waits = any(isinstance(one, RoundProposer) for one in proposers)
    order = asked.order(Pace.WAIT if waits else Pace.GO_ON)
    session = connection.session()
    return complete(asked, session, inline(proposers), tokenizer, silent, Event(), order=order)


def test_texts_of_every_draft_and_sampling_at_once_are_the_targets_own(
    served: Target, connection: Connection, tokenizer: Tokenizer, ties: NearTies
) -> None:
    target, draft = load("target", tokenizer), load("draft", tokenizer)

    def write(number: int) -> None:
        params = SAMPLINGS[number % 4]
        model = EagerModel(draft, rows=1, capacity=1024 + TUNING.room, max_nodes=256)
        proposer = PROPOSERS[number % 3](model)
        prompt = tokenizer.encode(TEXTS[number // 3])
        own = completed(connection, tokenizer, prompt, params, 16).token_ids

        def made(prompt: Sequence[int], tokens: int) -> list[int]:
            given = prompt, params, tokens, [proposer]
            return completed(connection, tokenizer, *given).token_ids

        assert_same_text(target, prompt, params, own, made, ties)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(12)))
    assert served.engine.free_rows == served.engine.model.rows


def test_the_draft_agrees_with_the_target_as_the_card_says(
    connection: Connection, tokenizer: Tokenizer
) -> None:
    """Metrics are the training script's own; a chain must not be far below what they say."""
    metrics = json.loads((EMBEDDED / "metrics.json").read_text())
    assert metrics["held_out_text"]["draft_covers_target_choice"]["top1"] >= 0.6
    model = EagerModel(load("draft", tokenizer), rows=1, capacity=1024 + 63, max_nodes=256)
    done = [
        completed(
            connection,
            tokenizer,
            tokenizer.encode(text),
            SamplingParams(0.7, seed=40 + number),
            48,
            [RoundProposer(model, Chain(1), room=63)],
        )
        for number, text in enumerate(TEXTS[1:])
    ]
    accepted = sum(one.num_accepted_tokens for one in done)
    assert accepted > 0.45 * sum(one.num_draft_tokens for one in done)


def test_the_pair_is_small_enough_to_ship() -> None:
    files = [path for path in EMBEDDED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15e6
    target, draft = (EMBEDDED / kind / "model.safetensors" for kind in ("target", "draft"))
    assert draft.stat().st_size * 6 <= target.stat().st_size
