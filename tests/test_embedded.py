"""The pair that ships here: lossless up to its stop ids, and as good as its card says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from grpc_comm.client.connection import Connection, connect
from grpc_comm.server.server import BackgroundServer, Target
from inference.backends.eager import EagerModel
from inference.draft_thread import inline
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.drafters.round_proposer import BestFirst, Chain, Policy, RoundProposer
from inference.engine.local_session import LocalSession
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.order import Pace
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import DraftTimes, LatencyModel
from outrider.models.directories import EMBEDDED
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request, complete
from tests.support.equality import NearTies, assert_same_text

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, top_p=0.9, seed=2).on_the_wire(),
    SamplingParams(1.0, seed=3),
]
POLICIES: list[Policy] = [Chain(4), BestFirst(16, 6)]
TEXT = (
    "import os\nimport sys\n\n\ndef walk(top):\n    for name in sorted(os.listdir(top)):\n        "
    "path = os.path.join(top, name)\n" * 8
)


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
    return load_decoder(
        EMBEDDED / kind,
        positions=1024,
        vocabulary=tokenizer.vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.fixture(scope="module")
def draft(tokenizer: Tokenizer) -> EagerModel:
    return EagerModel(load("draft", tokenizer), rows=1, capacity=1024 + TUNING.room, max_nodes=256)


@pytest.fixture(scope="module")
def target(tokenizer: Tokenizer) -> Decoder:
    return load("target", tokenizer)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    long = tokenizer.encode(TEXT)
    assert len(long) > 300
    return [long[:1], tokenizer.encode("def main(argv):\n"), long]


def growing(model: EagerModel, *, here: bool) -> GrowingProposer:
    """here: the target's forwards are made in this thread, so that each call holds them up."""
    target = LatencyModel({(1, 1): 0.01, (1, 64): 0.02})
    known = Knowledge(DraftTimes({1: 0.002}), target, read_acceptance())
    return Draft(model).proposer(0, known, Prices(holds_target=here))


PROPOSERS: dict[str, Policy | None] = {"Growing": None} | {
    type(policy).__name__: policy for policy in POLICIES
}


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p:.1f}"
)
@pytest.mark.parametrize("proposes", PROPOSERS)
@pytest.mark.parametrize("where", ["in process", "over gRPC"])
def test_output_equals_the_targets_own_seeded_decoding(
    served: Target, connection: Connection, draft: EagerModel, target: Decoder,
    tokenizer: Tokenizer, ties: NearTies, params: SamplingParams, proposes: str, where: str,
) -> None:  # fmt: skip
    policy, here = PROPOSERS[proposes], where == "in process"
    proposer: Proposer = (
        growing(draft, here=here) if policy is None else RoundProposer(draft, policy, room=63)
    )

    def text(prompt: Sequence[int], n: int, proposers: Sequence[Proposer]) -> list[int]:
        session = LocalSession(served.engine) if here else connection.session()
        asked = Request(0, "", prompt, params, n, frozenset())
        order = asked.order(Pace.WAIT if proposers and policy else Pace.GO_ON)
        return complete(
            asked, session, inline(proposers), tokenizer, silent, Event(), order=order
        ).token_ids

    for prompt in prompts(tokenizer):
        reference = text(prompt, 40, [])
        assert_same_text(
            target, prompt, params, reference, lambda at, n: text(at, n, [proposer]), ties
        )


def request(tokenizer: Tokenizer, stop_ids: frozenset[int], index: int = 0) -> Request:
    text = ["def main(argv):\n", "class Node:\n", "import re\n", "for line in file:\n"][index % 4]
    return Request(
        index, text, tokenizer.encode(text), SamplingParams(0.7, seed=40 + index), 48, stop_ids
    )


def drafted(
    asked: Request, connection: Connection, model: EagerModel, policy: Policy, tokenizer: Tokenizer
) -> Completion:
    proposer, order = RoundProposer(model, policy, room=63), asked.order(Pace.WAIT)
    session = connection.session()
    return complete(asked, session, inline([proposer]), tokenizer, silent, Event(), order=order)


def test_generation_stops_at_a_stop_id_wherever_it_falls_in_a_forward(
    connection: Connection, draft: EagerModel, tokenizer: Tokenizer
) -> None:
    """Every token of a text is made the stop id once, so that it stands inside accepted paths,
    at their end and after them.
    """

    def alone(asked: Request) -> Completion:
        return complete(asked, connection.session(), inline(), tokenizer, silent, Event())

    full = alone(request(tokenizer, frozenset()))
    assert full.finish_reason == "length"
    for token in list(dict.fromkeys(full.token_ids))[:10]:
        cut = full.token_ids[: full.token_ids.index(token) + 1]
        asked = request(tokenizer, frozenset([token]))
        text = tokenizer.decode([*asked.ids, *cut[:-1]]).removeprefix(asked.prompt)
        for done in (
            alone(asked),
            drafted(asked, connection, draft, BestFirst(16, 6), tokenizer),
            complete(
                asked, connection.session(), inline([growing(draft, here=False)]),
                tokenizer, silent, Event(),
            ),
        ):  # fmt: skip
            assert (done.token_ids, done.text, done.finish_reason) == (cut, text, "stop")


def test_eight_sessions_at_once_give_the_texts_of_one_by_one(
    served: Target, connection: Connection, tokenizer: Tokenizer
) -> None:
    decoder = load("draft", tokenizer)

    def make(index: int) -> list[int]:
        model = EagerModel(decoder, rows=1, capacity=1024 + TUNING.room, max_nodes=256)
        asked = request(tokenizer, frozenset(), index)
        if index % 2:
            return drafted(asked, connection, model, POLICIES[index // 2 % 2], tokenizer).token_ids
        proposers = [growing(model, here=False)]
        return complete(
            asked, connection.session(), inline(proposers), tokenizer, silent, Event()
        ).token_ids

    one_by_one = [make(index) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make, range(8))) == one_by_one
    assert served.engine.free_rows == served.engine.model.rows


def test_the_draft_agrees_with_the_target_as_the_card_says(
    served: Target, connection: Connection, draft: EagerModel, tokenizer: Tokenizer
) -> None:
    """Metrics are the training script's own; a chain's acceptance here must not be far below
    what they say.
    """
    metrics = json.loads((EMBEDDED / "metrics.json").read_text())
    assert metrics["held_out_text"]["draft_covers_target_choice"]["top1"] >= 0.6
    done = [
        drafted(request(tokenizer, frozenset(), index), connection, draft, Chain(1), tokenizer)
        for index in range(4)
    ]
    assert (
        sum(run.num_accepted_tokens for run in done) / sum(run.num_draft_tokens for run in done)
        > 0.45
    )


def test_the_pair_is_small_enough_to_ship() -> None:
    files = [path for path in EMBEDDED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15e6
    sizes = {
        kind: (EMBEDDED / kind / "model.safetensors").stat().st_size for kind in ("target", "draft")
    }
    assert sizes["draft"] * 6 <= sizes["target"]
