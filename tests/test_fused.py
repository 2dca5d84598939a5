"""Draft and target on one host: the text that is streamed back is the target's own, with and without the draft beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from grpc_comm import translate
from grpc_comm.client import Connection, connect
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server import BackgroundServer
from inference.backends.eager import EagerModel
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.errors import InvalidRequest
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.policy import BestFirst, Chain, Policy
from inference.sampling import SamplingParams
from inference.stats import Traffic
from outrider.cli import main
from outrider.fused import with_draft
from outrider.options import Options
from outrider.serve import load_target
from tests.pairs import SEQUENCE_LENGTH, decoder, engine, perturbed
from tests.wire_fixtures import (
    FAULTY,
    WAIT,
    background,
    opening,
    raw_stub,
    status,
    successor_engine,
)

PROMPT, TOKENS = [5, 17, 250, 3, 99], 30
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=3),
    SamplingParams(1.0, seed=4),
    SamplingParams(1.0, top_p=0.9, seed=5),
]


def pool(draft: Decoder, policy: Policy, rows: int = 2) -> DraftPool:
    return DraftPool(
        EagerModel(draft, rows=rows, capacity=SEQUENCE_LENGTH + 128, max_nodes=128), policy
    )


@pytest.fixture(scope="module")
def served() -> Engine:
    return engine(decoder(1), rows=2)


@pytest.fixture(params=["close", "unrelated"])
def fused(request: pytest.FixtureRequest, served: Engine) -> Iterator[Connection]:
    """A host with a draft that is a little off its target, or has nothing to do with it."""
    drafts = (
        pool(perturbed(1, 0.02), BestFirst(8, 3))
        if request.param == "close"
        else pool(decoder(99, layers=1), Chain(3))
    )
    with background(served, drafts=drafts) as server, connect(str(server.address)) as connection:
        yield connection


def alone(params: SamplingParams, prompt: list[int] = PROMPT) -> list[int]:
    verifier = LocalVerifier(engine(decoder(1)))
    verifier.open(prompt, params).result()
    return list(verifier.generate(TOKENS, frozenset()))


def made(
    connection: Connection, params: SamplingParams, *, with_draft: bool, prompt: list[int] = PROMPT
) -> list[int]:
    rounds = connection.generate(
        prompt, params, TOKENS, frozenset(), fused=with_draft, traffic=Traffic()
    )
    return [token for tokens, _, _ in rounds for token in tokens]


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_the_text_is_the_targets_own_seeded_decoding(
    fused: Connection, params: SamplingParams
) -> None:
    expected = alone(params)
    assert made(fused, params, with_draft=True) == expected
    assert made(fused, params, with_draft=False) == expected


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [(Chain(1), 1), (Chain(5), 5), (BestFirst(4, 2), 4), (BestFirst(9, 3), 9)],
    ids=str,
)
def test_each_text_may_ask_for_trees_of_its_own(served: Engine, policy: Policy, nodes: int) -> None:
    drafts = DraftPool(
        EagerModel(perturbed(1, 0.02), rows=2, capacity=SEQUENCE_LENGTH + 128, max_nodes=128),
        Chain(2),
        room=128,
    )
    with background(served, drafts=drafts) as server, connect(str(server.address)) as connection:
        params = SAMPLINGS[1]
        rounds = list(
            connection.generate(
                PROMPT, params, TOKENS, frozenset(), fused=True, traffic=Traffic(), policy=policy
            )
        )
        assert [token for tokens, _, _ in rounds for token in tokens] == alone(params)
        assert max(drafted for _, drafted, _ in rounds) == nodes
        as_the_host_is_set = connection.generate(
            PROMPT, params, TOKENS, frozenset(), fused=True, traffic=Traffic()
        )
        assert max(drafted for _, drafted, _ in as_the_host_is_set) == 2


def test_several_texts_at_once_are_those_made_one_by_one(fused: Connection) -> None:
    prompts = [[*PROMPT, number] for number in range(6)]
    expected = [alone(SAMPLINGS[number % 3], prompt) for number, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(6) as clients:
        texts = clients.map(
            lambda pair: made(fused, SAMPLINGS[pair[0] % 3], with_draft=True, prompt=pair[1]),
            enumerate(prompts),
        )
        assert list(texts) == expected


def test_counters_are_those_of_what_happened(fused: Connection) -> None:
    traffic = Traffic()
    rounds = list(
        fused.generate(PROMPT, SamplingParams(), TOKENS, frozenset(), fused=True, traffic=traffic)
    )
    assert sum(len(tokens) for tokens, _, _ in rounds) == TOKENS
    assert all(len(tokens) - 1 <= drafted for tokens, drafted, _ in rounds)
    assert rounds[-1].draft_seconds > 0 < traffic.model_seconds
    assert traffic.bytes_up > 0 < traffic.bytes_down


def test_a_stop_id_is_the_last_token_and_the_row_is_free_afterwards(
    fused: Connection, served: Engine
) -> None:
    expected = alone(SamplingParams())
    stop = expected[7]
    rounds = fused.generate(
        PROMPT, SamplingParams(), TOKENS, frozenset({stop}), fused=True, traffic=Traffic()
    )
    assert [token for tokens, _, _ in rounds for token in tokens] == expected[
        : expected.index(stop) + 1
    ]
    fused.close()


def test_who_leaves_in_the_middle_gives_everything_back(served: Engine) -> None:
    drafts = pool(decoder(99, layers=1), Chain(2), rows=1)
    with background(served, drafts=drafts) as server, connect(str(server.address)) as connection:
        for _ in range(3):
            rounds = connection.generate(
                PROMPT, SamplingParams(), TOKENS, frozenset(), fused=True, traffic=Traffic()
            )
            next(rounds)
            rounds.close()
        assert made(connection, SamplingParams(), with_draft=True) == alone(SamplingParams())
    assert served.free_rows == 2


def asked(**changes: object) -> pb.GenerateRequest:
    fields: dict[str, object] = {"open": opening().open, "max_tokens": 5}
    return pb.GenerateRequest(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(fused=True), "no draft beside it"),
        (asked(max_tokens=0), "max_tokens must be 1 to"),
        (asked(max_tokens=2**32 - 1), "max_tokens must be 1 to"),
        (asked(stop_ids=[1] * 1025), "at most 1024"),
        (asked(open=opening(prompt=[]).open), "prompt is empty"),
        (asked(open=opening(temperature=-1.0).open), "temperature"),
        (asked(open=opening(model="other").open), "does not serve"),
        (pb.GenerateRequest(), "protocol 0"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(request_: pb.GenerateRequest, words: str) -> None:
    with background(successor_engine()) as server, raw_stub(server.address) as stub:
        code, details = status(stub.Generate(request_, timeout=WAIT))
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        assert words in details


def test_a_fault_in_the_target_is_a_status_without_its_reason() -> None:
    with background(successor_engine()) as server, raw_stub(server.address) as stub:
        code, details = status(
            stub.Generate(asked(open=opening(prompt=[1, FAULTY]).open), timeout=WAIT)
        )
        assert (code, details) == (grpc.StatusCode.INTERNAL, f"{translate.FAULT}: RuntimeError")
        assert status(stub.Generate(asked(), timeout=WAIT))[0] is grpc.StatusCode.OK


def test_a_client_hears_of_a_refusal_as_an_error_of_ours() -> None:
    with (
        background(successor_engine()) as server,
        connect(str(server.address)) as connection,
        pytest.raises(InvalidRequest, match="no draft"),
    ):
        next(
            connection.generate(
                [1, 2], SamplingParams(), 5, frozenset(), fused=True, traffic=Traffic()
            )
        )
    assert translate.MOST_STOP_IDS == 1024


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    """The port of the embedded pair on one host, which drafts chains of 4."""
    options = Options(role="fused_target", port=0, batch=1, gamma=4)
    with BackgroundServer(with_draft(load_target(options), options)) as server:
        yield str(server.address.port)


def asked_on_the_command_line(port: str, *flags: str) -> int:
    return main(
        [
            "--role",
            "fused_client",
            "--port",
            port,
            "--prompt",
            "import os",
            "--max_new_tokens",
            "24",
            "--seed",
            "3",
            "--json",
            *flags,
        ]
    )


@pytest.mark.parametrize(
    ("flags", "nodes"),
    [
        ([], 4),
        (["--gamma", "2"], 2),
        (["--tree_nodes", "9"], 9),
        (["--tree_nodes", "5", "--tree_depth", "2"], 5),
    ],
)
def test_the_command_line_asks_for_trees_or_takes_the_hosts(
    embedded: str, flags: list[str], nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked_on_the_command_line(embedded, *flags, "--baseline", "--temperature", "0.8") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert record["rounds"] < record["num_draft_tokens"] / nodes + 3
    assert record["num_draft_tokens"] <= nodes * record["rounds"]
    assert len(record["accepted_at_depth"]) <= nodes


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--tree_rates", "0.5"], "can be asked for"), (["--tree_nodes", "60"], "has room for 257")],
)
def test_the_command_line_is_told_what_cannot_be_asked_for(
    embedded: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked_on_the_command_line(embedded, *flags) == 1
    assert words in capsys.readouterr().err


def test_a_host_says_how_much_its_draft_has_room_for(embedded: str) -> None:
    with connect(f"127.0.0.1:{embedded}") as connection:
        assert connection.description.draft_nodes == 257
        assert connection.description.draft_model == "outrider-embedded-draft"


def test_trees_are_not_asked_of_a_target_without_a_draft(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = Options(role="target", port=0, batch=1)
    with BackgroundServer(load_target(options)) as server:
        assert asked_on_the_command_line(str(server.address.port), "--gamma", "2") == 1
    assert "no draft beside it" in capsys.readouterr().err
