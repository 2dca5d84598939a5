"""Fused rounds built for Neuron and run through the strict stand-in: ranks, one package, one state, rows of two models, losslessness."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compile.build import Source, build_artifact
from compile.fused_smoke import smoke
from compile.neuron_fused import FusedNeuronBuilder
from compile.spec import CompileSpec, verify_bucket
from inference.artifact import DraftBucket, FusedPart, RoundBucket, read_manifest
from inference.backends import RoundModel
from inference.backends.neuron import COPY, load_neuron
from inference.backends.neuron_fused import NeuronFusedModel
from inference.branches import Branches
from inference.decode import decode
from inference.drafters.graph import GraphDrafter, GraphPool
from inference.errors import InvalidRequest
from inference.fused import fused_rounds
from inference.local import LocalVerifier
from inference.model.checkpoint import fingerprint
from inference.model.config import read_json
from inference.sampling import SamplingParams
from tests.equality import NearTies, assert_same_text
from tests.fake_neuron import Neuron
from tests.models import TINY, write_checkpoint
from tests.neuron_artifacts import JUNK, LENGTH, ROWS, TREE, VOCABULARY, eager_of, engine_of, whole
from tests.test_lossless import alone

SHAPE = Branches((2, 1))
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]


def spec_of(draft: Path, ranks: int) -> CompileSpec:
    rounds = tuple(
        RoundBucket.of(SHAPE, ROWS, JUNK, JUNK, sampled=sampled) for sampled in (False, True)
    )
    part = FusedPart(
        "tiny draft",
        fingerprint(draft),
        read_json(draft / "config.json"),
        (DraftBucket(ROWS, 16, JUNK, 1, 1, False, JUNK),),
        rounds,
    )
    alone_ = (verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=True),)
    return CompileSpec(
        "tiny", "trn1", VOCABULARY, alone_, ROWS, LENGTH, TREE, "float32", ranks, fused=part
    )


def built(folder: Path, ranks: int = 2) -> tuple[NeuronFusedModel, Path]:
    """The model, and its target's checkpoint; the draft is another random model, with a head less of keys and values."""
    target, draft = (
        write_checkpoint(folder / "target"),
        write_checkpoint(folder / "draft", seed=1, num_hidden_layers=1, num_key_value_heads=2),
    )
    spec = spec_of(draft, ranks)
    builder = FusedNeuronBuilder(spec, target, VOCABULARY, draft)
    source = Source(target, fingerprint(target), "tokenizer", dict(TINY), (2,))
    manifest = build_artifact(
        spec, source, builder, folder / "artifact", command="test", say=lambda line: None
    )
    model = load_neuron(folder / "artifact", manifest, lambda line: None)
    assert isinstance(model, NeuronFusedModel)
    return model, target


def test_rounds_of_two_ranks_write_the_whole_targets_own_text(
    neuron: Neuron, tmp_path: Path
) -> None:
    model, target = built(tmp_path)
    assert isinstance(model, RoundModel)
    engine, prompt, ties = (
        engine_of(model),
        np.random.default_rng(2).integers(0, VOCABULARY, 20).tolist(),
        NearTies(),
    )
    for params in SAMPLINGS:
        reference = alone(LocalVerifier(engine_of(eager_of(target))), prompt, params, 12)

        def produce(prompt: list[int], n: int, params: SamplingParams = params) -> list[int]:
            with closing(LocalVerifier(engine)) as verifier:
                steps = decode(
                    prompt, params, GraphDrafter(model, model.draft, row=1), verifier, n
                )  # the target's row is 0
                return [token for step in steps for token in step.tokens]

        assert_same_text(
            whole(target),
            prompt,
            params,
            reference,
            lambda prompt, n, produce=produce: produce(list(prompt), n),
            ties,
        )
    assert ties.ties == 0
    assert "tokens as the target alone chooses" in smoke(
        tmp_path / "artifact", read_manifest(tmp_path / "artifact"), lambda line: None
    )
    assert {
        "round_b2_2x1_s72_sampled",
        "round_b2_2x1_s72_greedy",
        "draft_prefill_b2_t16_s72_greedy",
        COPY,
    } <= set(neuron.calls)


def test_two_texts_share_a_call_though_their_rows_are_crossed(
    neuron: Neuron, tmp_path: Path
) -> None:
    model, target = built(tmp_path, ranks=1)
    engine, stopped, pool = engine_of(model), threading.Event(), GraphPool(model)
    with pool.drafter() as first, pool.drafter() as second:
        drafters, texts = [second, first], [list[int](), list[int]()]

        def write(number: int) -> None:
            with closing(LocalVerifier(engine)) as verifier:
                for made in fused_rounds(
                    [5, 17, number], SAMPLINGS[number], drafters[number], verifier, 10, frozenset()
                ):
                    texts[number].extend(made.tokens)

        serving = threading.Thread(target=engine.run, args=(stopped,))
        writing = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in (serving, *writing):
            thread.start()
        for thread in writing:
            thread.join()
        engine.stop(stopped)
        serving.join()
    for number in range(2):
        assert texts[number] == alone(
            LocalVerifier(engine_of(eager_of(target))), [5, 17, number], SAMPLINGS[number], 10
        )


def test_a_draft_that_cannot_be_dealt_out_is_refused(neuron: Neuron, tmp_path: Path) -> None:
    target, draft = (
        write_checkpoint(tmp_path / "target"),
        write_checkpoint(tmp_path / "draft", num_attention_heads=1, num_key_value_heads=1),
    )
    with pytest.raises(InvalidRequest, match="attention heads"):
        FusedNeuronBuilder(spec_of(draft, 2), target, VOCABULARY, draft)
    with pytest.raises(InvalidRequest, match="without a draft"):
        FusedNeuronBuilder(replace(spec_of(draft, 1), fused=None), target, VOCABULARY, draft)
