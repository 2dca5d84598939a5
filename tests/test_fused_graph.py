"""Rounds that one graph drafts, verifies and accepts, run eagerly: the text is the target's own, and what is counted is what happened."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from grpc_comm.client import connect
from inference.accept import accept_match
from inference.artifact import (
    Bucket,
    DraftBucket,
    FusedPart,
    Manifest,
    RoundBucket,
    read_manifest,
    write_manifest,
)
from inference.backends.eager import EagerModel
from inference.backends.fused import FusedModel
from inference.branches import Branches
from inference.decode import Step, decode
from inference.drafters.graph import GraphDrafter, GraphPool
from inference.engine import Engine
from inference.errors import BadArtifact, InvalidRequest, LimitExceeded
from inference.fused import fused_rounds
from inference.graph_tree import NONE, Branching, GraphTree
from inference.local import LocalVerifier
from inference.model.checkpoint import load_decoder
from inference.model.fused_graph import accept_in_graph
from inference.policy import Chain
from inference.sampling import SamplingParams
from inference.stats import Statistics, Traffic
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.models import EMBEDDED
from tests.equality import NearTies, assert_same_text
from tests.fused_models import eager_fused
from tests.pairs import VOCABULARY, decoder, drafter, engine, perturbed
from tests.wire_fixtures import WAIT, background

LENGTH, TOKENS, PROMPT = 120, 30, [5, 17, 250, 3, 99]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=3),
    SamplingParams(1.0, seed=4),
    SamplingParams(1.0, top_p=0.9, top_k=20, seed=5).on_the_wire(),
]
SHAPES = [Branches.chain(4), Branches((3, 1, 2))]
DRAFTS = {"close": perturbed(1, 0.02), "unrelated": decoder(99, layers=1)}


def served_by(model: FusedModel, length: int = LENGTH) -> Engine:
    return Engine(
        model, sequence_length=length, max_tree_nodes=model.shape.nodes, vocabulary=VOCABULARY
    )


@cache
def alone(params: SamplingParams, last: int = PROMPT[-1], tokens: int = TOKENS) -> list[int]:
    """The target's own text after PROMPT, whose last token may be another."""
    with closing(LocalVerifier(engine(decoder(1)))) as verifier:
        verifier.open([*PROMPT[:-1], last], params).result()
        return list(verifier.generate(tokens, frozenset()))


def steps_of(
    served: Engine, params: SamplingParams, prompt: Sequence[int] = PROMPT, tokens: int = TOKENS
) -> list[Step]:
    assert isinstance(served.model, FusedModel)
    with closing(LocalVerifier(served)) as verifier:
        return list(
            decode(
                prompt,
                params,
                GraphDrafter(served.model, served.model.draft, row=1),
                verifier,
                tokens,
            )
        )


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


# --- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branches", [(1,), (1, 1, 1), (3,), (2, 3), (4, 2, 1)], ids=str)
def test_acceptance_in_the_graph_is_acceptance_on_the_host(branches: tuple[int, ...]) -> None:
    shape, rng, accepted = Branches(branches), np.random.default_rng(3), 0
    for _ in range(100):
        tokens = _tokens(shape, rng)
        chosen = rng.integers(0, 6, shape.nodes).astype(np.int32)
        path, next_token = accept_in_graph(
            shape, *(torch.from_numpy(part)[None] for part in (tokens, chosen))
        )
        tree = TokenTree(tokens, np.array(shape.parents))
        expected = accept_match(tree, chosen)
        assert path[0].tolist() == [*expected.path, *[NONE] * (shape.depth - len(expected.path))]
        assert next_token.tolist() == [expected.next_token]
        accepted += len(expected.path)
    assert accepted > 10


def _tokens(shape: Branches, rng: np.random.Generator) -> np.ndarray:
    """Of few ids, so that many are accepted; siblings distinct."""
    below = [
        rng.permutation(6)[:branch]
        for wide, branch in zip(shape.levels, shape.branches, strict=False)
        for _ in range(wide)
    ]
    return np.concatenate([[0], *below]).astype(np.int32)


def test_nodes_are_numbered_level_by_level() -> None:
    shape = Branches((2, 2))
    assert (shape.nodes, shape.inner, shape.depth) == (7, 3, 2)
    assert shape.parents == (-1, 0, 0, 1, 1, 2, 2)
    assert shape.depths == (0, 1, 1, 2, 2, 2, 2)


def test_what_is_accepted_ends_at_the_limit_with_the_token_that_the_target_chose_there() -> None:
    tree = GraphTree(Branches.chain(3), 9, 1, None)
    assert tree.depths.tolist() == [0, 1, 1, 1]
    verdict = tree.filled(np.array([4, 5, 6, 1, 2, NONE, 7], dtype=np.int32))
    assert (verdict.path, verdict.next_token) == ((1,), 5)
    assert tree.tokens.tolist() == [9, 4, 5, 6]


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_text_is_the_targets_own_seeded_decoding(
    shape: Branches, draft: str, ties: NearTies
) -> None:
    served = served_by(eager_fused(decoder(1), DRAFTS[draft], shape))
    for params in SAMPLINGS:
        assert_same_text(
            decoder(1), PROMPT, params, alone(params), lambda prompt, n, params=params: tokens_of(steps_of(served, params, prompt, n)), ties
        )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_round_drafts_what_the_same_draft_drafts_beside_the_target(
    shape: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caches are right after any verdict: else its trees would be others."""
    monkeypatch.setattr(
        "inference.scheduler.LEAST_SAVED", 1e9
    )  # the target beside cuts no tree, whatever forwards take on this machine
    served, beside = served_by(eager_fused(decoder(1), DRAFTS["close"], shape)), engine(decoder(1))
    for params in SAMPLINGS:
        ours = steps_of(served, params)
        with closing(LocalVerifier(beside)) as verifier:
            theirs = list(
                decode(PROMPT, params, drafter(DRAFTS["close"], Branching(shape)), verifier, TOKENS)
            )
        assert [step.verdict for step in ours[:-2]] == [
            step.verdict for step in theirs[:-2]
        ]  # the last ones are cut to what is left
        assert [step.tree.tokens.tolist() for step in ours[:-2]] == [
            step.tree.tokens.tolist() for step in theirs[:-2]
        ]


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
def test_the_embedded_pair_writes_its_targets_text_in_fewer_rounds(
    params: SamplingParams, ties: NearTies
) -> None:
    tokenizer = Tokenizer(EMBEDDED / "target")
    target, draft = (
        load_decoder(
            EMBEDDED / which,
            positions=LENGTH,
            vocabulary=tokenizer.vocabulary,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        for which in ("target", "draft")
    )
    prompt = tokenizer.encode("def main():\n    parser = argparse.")
    model = EagerModel(target, rows=1, capacity=LENGTH + 8, max_nodes=64)
    with closing(
        LocalVerifier(
            Engine(model, sequence_length=LENGTH, max_tree_nodes=8, vocabulary=tokenizer.vocabulary)
        )
    ) as verifier:
        verifier.open(prompt, params).result()
        reference = list(verifier.generate(40, frozenset()))
    served = Engine(
        eager_fused(target, draft, Branches.chain(4)),
        sequence_length=LENGTH,
        max_tree_nodes=5,
        vocabulary=tokenizer.vocabulary,
    )
    steps = steps_of(served, params, prompt, 40)
    assert len(steps) < 25
    assert_same_text(
        target,
        prompt,
        params,
        reference,
        lambda prompt, n: tokens_of(steps_of(served, params, prompt, n)),
        ties,
    )


def test_the_last_round_ends_where_the_sequence_does() -> None:
    served, room = (
        served_by(eager_fused(decoder(1), decoder(1), Branches.chain(4), length=40), 40),
        40 - len(PROMPT),
    )
    for tokens in (1, 2, 7, room):
        made = tokens_of(steps_of(served, SAMPLINGS[1], tokens=tokens))
        assert made == alone(SAMPLINGS[1], tokens=tokens)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_texts_of_any_sampling_at_once_are_those_made_one_by_one() -> None:
    model = eager_fused(decoder(1), DRAFTS["close"], Branches.chain(3), rows=3)
    together: list[int] = []
    call, served, pool, stopped = (
        model.rounds,
        served_by(model),
        GraphPool(model),
        threading.Event(),
    )
    model.rounds = lambda segments: (together.append(len(segments)), call(segments))[1]  # type: ignore[method-assign, func-returns-value]

    def write(number: int) -> list[int]:
        with closing(LocalVerifier(served)) as verifier, pool.drafter() as drafter_:
            made = fused_rounds(
                [*PROMPT[:-1], number],
                SAMPLINGS[number % 4],
                drafter_,
                verifier,
                TOKENS,
                frozenset(),
            )
            return [token for tokens, _ in made for token in tokens]

    thread = threading.Thread(target=served.run, args=(stopped,))
    thread.start()
    try:
        with ThreadPoolExecutor(7) as texts:
            assert list(texts.map(write, range(7))) == [
                alone(SAMPLINGS[number % 4], number) for number in range(7)
            ]
    finally:
        served.stop(stopped)
        thread.join()
    assert max(together) > 1
    assert served.free_rows == 3


def test_a_session_that_was_drafted_for_elsewhere_shares_the_target() -> None:
    """Trees of others are verified by the target's own graphs, in rows of the same caches."""
    model = eager_fused(decoder(1), DRAFTS["close"], Branches.chain(3))
    served = served_by(model)
    params, others = SAMPLINGS[2], drafter(DRAFTS["close"], Chain(2))
    with (
        closing(LocalVerifier(served)) as verifier,
        closing(LocalVerifier(served)) as beside,
        GraphPool(model).drafter() as own,
    ):
        ours, theirs = (
            decode(PROMPT, params, own, verifier, TOKENS),
            decode(PROMPT, params, others, beside, TOKENS),
        )
        pairs = list(zip(ours, theirs, strict=False))
    assert (
        tokens_of([pair[0] for pair in pairs])
        == alone(params)[: sum(len(pair[0].tokens) for pair in pairs)]
    )
    assert (
        tokens_of([pair[1] for pair in pairs])
        == alone(params)[: sum(len(pair[1].tokens) for pair in pairs)]
    )


# --- over the wire ----------------------------------------------------------------------------------------------------


def test_generate_over_grpc_makes_the_same_text_with_counters_of_what_happened() -> None:
    model = eager_fused(decoder(1), DRAFTS["close"], Branches.chain(4))
    with (
        background(served_by(model), drafts=GraphPool(model)) as server,
        connect(str(server.address)) as connection,
    ):
        for params in SAMPLINGS:
            statistics, traffic, made = Statistics(), Traffic(), list[int]()
            for tokens, drafted, _ in connection.generate(
                PROMPT, params, TOKENS, frozenset(), fused=True, traffic=traffic
            ):
                statistics.count(drafted, len(tokens) - 1)
                made += tokens
            assert made == alone(params)
            assert statistics.num_draft_tokens == 4 * statistics.rounds
            assert statistics.acceptance_length == TOKENS / statistics.rounds > 1.2
            assert traffic.model_seconds > 0
        stop = alone(SAMPLINGS[1])[9]
        rounds = connection.generate(
            PROMPT, SAMPLINGS[1], TOKENS, frozenset({stop}), fused=True, traffic=Traffic()
        )
        text = alone(SAMPLINGS[1])
        assert [token for tokens, _, _ in rounds for token in tokens] == text[
            : text.index(stop) + 1
        ]
        with pytest.raises(InvalidRequest, match="chain of 4"):
            next(
                connection.generate(
                    PROMPT,
                    SAMPLINGS[0],
                    TOKENS,
                    frozenset(),
                    fused=True,
                    traffic=Traffic(),
                    policy=Chain(2),
                )
            )


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
def test_a_session_under_way_goes_on_with_the_draft_in_the_graph(params: SamplingParams) -> None:
    """From the row that it has: by the target alone, by rounds of the graph, and by the target alone again."""
    model = eager_fused(decoder(1), DRAFTS["close"], Branches.chain(3))
    with (
        background(served_by(model), drafts=GraphPool(model)) as server,
        connect(str(server.address)) as connection,
    ):
        verifier = connection.verifier()
        verifier.open(PROMPT, params).result(WAIT)
        text = list(verifier.generate(4, frozenset()))
        text += verifier.generate(20, frozenset(), fused=True, policy=Chain(3))
        text += verifier.generate(6, frozenset())
        verifier.close()
    assert text == alone(params)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_target_without_a_draft_in_its_graphs_says_so() -> None:
    served = engine(decoder(1))
    model = eager_fused(decoder(1), DRAFTS["close"], Branches.chain(2))
    with (
        closing(LocalVerifier(served)) as verifier,
        pytest.raises(InvalidRequest, match="no draft in its graphs"),
    ):
        list(decode(PROMPT, SamplingParams(), GraphDrafter(model, model.draft, row=0), verifier, 3))


def test_rounds_for_greedy_decoding_alone_refuse_another_temperature() -> None:
    served = served_by(eager_fused(decoder(1), DRAFTS["close"], Branches.chain(2), sampled=False))
    assert tokens_of(steps_of(served, SamplingParams())) == alone(SamplingParams())
    with pytest.raises(InvalidRequest, match="greedy decoding"):
        steps_of(served, SAMPLINGS[1])


def test_other_shapes_than_the_graphs_are_refused() -> None:
    pool = GraphPool(eager_fused(decoder(1), DRAFTS["close"], Branches.chain(2)))
    pool.check(Chain(2))
    for policy in (Chain(1), Chain(0), Branching(Branches((2, 1)))):
        with pytest.raises(LimitExceeded, match="chain of 2"):
            pool.check(policy)
    with pytest.raises(InvalidRequest):
        Branches(())
    with pytest.raises(BadArtifact, match="chain of 2"):
        RoundBucket(1, 4, 64, 4, 3, False, 64, (1, 1))


# --- the manifest -----------------------------------------------------------------------------------------------------


def manifest(fused: FusedPart | None) -> Manifest:
    return Manifest(
        "cpu", "m", "f", "t", 61, (2,), {}, "float32", 1, 2, 64, 56, 8, (Bucket(1, 8, 64, 8, 4, True, 64),), {}, {}, {}, {}, "c", "now", fused=fused
    )  # fmt: skip


def test_a_manifest_remembers_the_draft_and_is_what_it_was_without_one(tmp_path: Path) -> None:
    part = FusedPart(
        "d",
        "fp",
        {},
        (DraftBucket(1, 8, 64, 1, 1, False, 64),),
        (RoundBucket.of(Branches((2, 1)), 1, 64, 64, sampled=True),),
    )
    write_manifest(tmp_path, manifest(part))
    assert read_manifest(tmp_path) == manifest(part)
    assert read_manifest(tmp_path).digest() == manifest(part).digest() != manifest(None).digest()
    assert [bucket.name for bucket in part.prefill] == ["draft_prefill_b1_t8_s64_greedy"]
    assert [bucket.name for bucket in part.rounds] == ["round_b1_2x1_s64_sampled"]
    write_manifest(tmp_path, manifest(None))
    assert "fused" not in (tmp_path / "manifest.json").read_text()
    assert read_manifest(tmp_path) == manifest(None)
