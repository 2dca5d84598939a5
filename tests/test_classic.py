"""Classic acceptance: texts are distributed as the target's own, whatever the draft and the tree; at temperature 0 they are the target's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from grpc_comm.client import Connection, connect
from grpc_comm.server import Target
from inference.accept import Verdict
from inference.backends.cuda import CudaModel
from inference.backends.eager import EagerModel
from inference.backends.timed import find_profile, timed
from inference.choice import Sampling, choose_mixed, probabilities, probabilities_open
from inference.drafters.classic import ClassicDrafter, fixed_shape
from inference.drafters.pool import DraftPool
from inference.drawing import DrawnTree
from inference.engine import Engine
from inference.errors import InvalidRequest
from inference.fused import fused_rounds
from inference.local import LocalVerifier
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.policy import BestFirst, Budget, Chain, Policy, Static
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.stats import Traffic
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.fused import with_draft
from outrider.models import EMBEDDED
from outrider.options import Options, parse
from tests.equality import full_logits
from tests.pairs import VOCABULARY, decoder
from tests.test_cuda import Reruns
from tests.test_lossless import alone
from tests.test_rejection import UNLIKELY, chi_square
from tests.wire_fixtures import LOOPBACK, Successor, background, describe, successor_engine

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]))
CASES = {
    "open": (SamplingParams(1.0), [0.1, 0.4, 0.05, 0.3, 0.15]),
    "temperature": (
        SamplingParams(0.5),
        [0.01 / 0.285, 0.16 / 0.285, 0.0025 / 0.285, 0.09 / 0.285, 0.0225 / 0.285],
    ),
    "top_k": (SamplingParams(1.0, top_k=2), [0, 4 / 7, 0, 3 / 7, 0]),
    "top_p": (SamplingParams(1.0, top_p=0.75), [0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85]),
    "greedy": (SamplingParams(), [0, 1, 0, 0, 0]),
}


@pytest.mark.parametrize("name", CASES)
def test_probabilities_are_those_of_the_choice(name: str) -> None:
    """Against numbers written out, and against 4,000 choices."""
    params, exact = CASES[name]
    sampling = Sampling.of([params], torch.device("cpu"))
    assert probabilities(LOGITS[None, None], sampling)[0, 0].tolist() == pytest.approx(exact)
    if not params.truncated:
        assert probabilities_open(LOGITS[None, None], sampling)[0, 0].tolist() == pytest.approx(
            exact
        )
    many = LOGITS.expand(1, 4000, 5)
    chosen = choose_mixed(many, sampling, torch.arange(4000, dtype=torch.int32)[None], 4000)[
        0
    ].tolist()
    assert np.bincount(chosen, minlength=5) / 4000 == pytest.approx(np.array(exact), abs=0.03)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(EMBEDDED / "target")


def load(kind: str, tokenizer: Tokenizer) -> Decoder:
    return load_decoder(
        EMBEDDED / kind,
        positions=256,
        vocabulary=tokenizer.vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.fixture(scope="module")
def target(tokenizer: Tokenizer) -> Decoder:
    return load("target", tokenizer)


@pytest.fixture(scope="module")
def engine(target: Decoder, tokenizer: Tokenizer) -> Engine:
    model = EagerModel(target, rows=4, capacity=256 + 32, max_nodes=64)
    return Engine(model, sequence_length=256, max_tree_nodes=32, vocabulary=tokenizer.vocabulary)


@pytest.fixture(scope="module")
def draft(tokenizer: Tokenizer) -> EagerModel:
    return EagerModel(load("draft", tokenizer), rows=4, capacity=256 + 128, max_nodes=128)


def made(
    engine: Engine,
    draft: EagerModel,
    policy: Policy,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
) -> list[int]:
    """By the fused loop in this process."""
    verifier, drafter = LocalVerifier(engine), ClassicDrafter(draft, policy)
    rounds = list(fused_rounds(prompt, params, drafter, verifier, tokens, frozenset()))
    verifier.close()
    return [token for round_ in rounds for token in round_.tokens]


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        (Static((0.5, 0.2, 0.1), 6, 2), SamplingParams(1.0)),
        (Chain(2), SamplingParams(0.8, top_p=0.9).on_the_wire()),
    ],
    ids=["tree at T 1", "chain at T 0.8, top-p 0.9"],
)
def test_two_tokens_of_the_fused_loop_are_distributed_as_the_targets(
    engine: Engine,
    draft: EagerModel,
    target: Decoder,
    tokenizer: Tokenizer,
    policy: Policy,
    params: SamplingParams,
) -> None:
    prompt, draws = tokenizer.encode("import os\n"), 160
    counts = Counter(
        tuple(
            made(
                engine,
                draft,
                policy,
                prompt,
                SamplingParams(params.temperature, 0, params.top_p, seed),
                3,
            )[:2]
        )
        for seed in range(draws)
    )

    def after(tokens: Sequence[int]) -> list[float]:
        logits = full_logits(target, tokens)[-1][None, None]
        return list(
            probabilities(logits, Sampling.of([params], torch.device("cpu")))[0, 0]
            .double()
            .tolist()
        )

    first = after(prompt)
    exact = {
        (a, b): first[a] * share
        for a in range(len(first))
        if first[a] > 5 / draws
        for b, share in enumerate(after([*prompt, a]))
    }
    assert chi_square(counts, exact, draws) > UNLIKELY
    marginal = Counter((a,) for a, _ in counts.elements())
    assert chi_square(marginal, {(a,): share for a, share in enumerate(first)}, draws) > UNLIKELY


@pytest.mark.parametrize(
    "policy",
    [Chain(4), Static((0.6, 0.15, 0.05), 12, 5), BestFirst(16, 6)],
    ids=lambda policy: type(policy).__name__,
)
def test_at_temperature_0_the_text_is_the_targets_own(
    engine: Engine, draft: EagerModel, tokenizer: Tokenizer, policy: Policy
) -> None:
    prompt = tokenizer.encode("def main(argv):\n")
    assert made(engine, draft, policy, prompt, SamplingParams(), 40) == alone(
        LocalVerifier(engine), prompt, SamplingParams(), 40
    )


@pytest.fixture(scope="module")
def host(target: Decoder, draft: EagerModel, tokenizer: Tokenizer) -> Iterator[Connection]:
    """A fused target with classic acceptance."""
    model = EagerModel(target, rows=4, capacity=256 + 32, max_nodes=64)
    served = Engine(model, sequence_length=256, max_tree_nodes=32, vocabulary=tokenizer.vocabulary)
    drafts = DraftPool(draft, BestFirst(16, 6), make=ClassicDrafter)
    with background(served, drafts=drafts) as server, connect(str(server.address)) as connection:
        yield connection


def test_a_seed_makes_one_text_in_any_company(
    host: Connection, engine: Engine, tokenizer: Tokenizer
) -> None:
    """Texts with and without the draft at once: those with it are as made one by one, those without are the target's seeded ones."""
    prompts = [
        tokenizer.encode(start)
        for start in ("class Node:\n", "import re\n", "def main(argv):\n", "for line in file:\n")
        * 2
    ]

    def generate(index: int) -> list[int]:
        params, fused = SamplingParams(0.8, seed=50 + index), index % 4 != 3
        rounds = host.generate(
            prompts[index], params, 16, frozenset(), fused=fused, traffic=Traffic()
        )
        return [token for tokens, *_ in rounds for token in tokens]

    one_by_one = [generate(index) for index in range(8)]
    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(generate, range(8))) == one_by_one
    for index in (3, 7):
        assert one_by_one[index] == alone(
            LocalVerifier(engine), prompts[index], SamplingParams(0.8, seed=50 + index), 16
        )
    assert all(len(text) == 16 for text in one_by_one)


def test_an_emulated_target_gives_what_its_model_gives(
    draft: EagerModel, tokenizer: Tokenizer
) -> None:
    profile = find_profile("llama-3.1-8b-trn1.2xlarge-roofline")
    asked = ClassicDrafter(timed(draft, profile), Chain(1))
    asked.open(tokenizer.encode("import"), SamplingParams(1.0, seed=3))
    assert isinstance(asked.draft(5, Budget(4, 4)), DrawnTree)
    with pytest.raises(InvalidRequest, match="gives choices only"):
        ClassicDrafter(timed(Successor(rows=1), profile), Chain(1))


def test_a_recorded_model_gives_the_probabilities_of_the_eager_one() -> None:
    """Three rounds, so that a call runs, is recorded and is replayed."""
    weights = decoder(1)
    eager = EagerModel(weights, rows=2, capacity=64, max_nodes=16)
    replaying = CudaModel(weights, rows=2, capacity=64, max_nodes=16, recorder=Reruns())
    for params in (SamplingParams(0.7, seed=1), SamplingParams(1.0, top_k=5, top_p=0.8, seed=2)):
        pair = [ModelSequence(model, 1, params) for model in (eager, replaying)]
        for token in range(5, 8):
            chain = TokenTree.chain([token, 9, 11])
            given = [
                model.distributions([sequence.prepare(chain)])[0]
                for model, sequence in zip((eager, replaying), pair, strict=True)
            ]
            for sequence in pair:
                sequence.commit(chain, [1, 2])
            assert given[0].shape == (3, VOCABULARY)
            assert given[0].sum(-1) == pytest.approx(np.ones(3), abs=1e-5)
            np.testing.assert_allclose(given[1], given[0], atol=1e-5)


def test_a_model_that_gives_choices_only_is_refused() -> None:
    tree = DrawnTree(np.array([3, 4]), np.array([-1, 0]), {0: np.ones(9)})
    served = successor_engine()
    session, opened = served.open([1, 2, 3], SamplingParams(1.0))
    served.finish(opened)
    with pytest.raises(InvalidRequest, match="gives choices only"):
        served.verify(session, tree)
    matched = served.verify(session, TokenTree.chain([3, 4]))
    served.finish(matched)
    assert matched.result().verdict == Verdict((1,), 5)
    target = Target(served, describe(served), LOOPBACK)
    with pytest.raises(InvalidRequest, match="gives choices only"):
        with_draft(target, Options(role="fused_target", acceptance="classic"))


class _Guessing:
    """A policy of no fixed shape."""

    most_ranked = 4


def test_shapes_are_fixed_or_refused() -> None:
    assert fixed_shape(Chain(3)) == Static((1.0,), 3, 3)
    assert fixed_shape(Static((0.5, 0.2), 6, 3)) == Static((0.5, 0.2), 6, 3)
    assert (fixed_shape(BestFirst(16, 6)).nodes, fixed_shape(BestFirst(16, 6)).depth) == (16, 6)
    with pytest.raises(InvalidRequest, match="fixed shape"):
        fixed_shape(_Guessing())  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["target", "draft", "fused_client"])
def test_only_a_fused_target_can_accept_classically(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(["--role", "fused_target", "--acceptance", "classic"]).acceptance == "classic"
    with pytest.raises(SystemExit):
        parse(["--role", role, "--acceptance", "classic"])
    assert "one process" in capsys.readouterr().err
