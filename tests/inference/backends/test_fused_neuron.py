"""Fused rounds built for Neuron, through the strict stand-in: ranks, and rows of two models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compile.neuron.builder import NeuronBuilder
from inference.backends import Scoring
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import COPY, NeuronFusedModel
from inference.backends.sequence import ModelSequence
from inference.engine.colocated.graph_rounds import GraphRounds, RoundModel, blank_tree
from inference.engine.sessions.local_session import LocalSession
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.equality import NearTies
from tests.support.fake_neuron import Neuron
from tests.support.models import adjustment, write_checkpoint
from tests.support.neuron_artifacts import (
    FUSED_SHAPE,
    MASKED,
    VOCABULARY,
    build,
    eager_of,
    engine_of,
    fused_spec_of,
    whole,
)
from tests.support.pairs import alone, assert_drafted_text

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]


def built(
    folder: Path, ranks: int = 2, said: list[str] | None = None
) -> tuple[NeuronFusedModel, Path]:
    """The model, and its target's checkpoint; the draft has fewer heads of keys and values."""
    target, draft = (
        write_checkpoint(folder / "target"),
        write_checkpoint(folder / "draft", seed=1, num_hidden_layers=1, num_key_value_heads=2),
    )
    spec = fused_spec_of(draft, ranks)
    builder = partial(NeuronBuilder, draft=draft)
    manifest = build(folder / "artifact", target, spec, builder, said)
    model = load_neuron(folder / "artifact", manifest, lambda line: None)
    assert isinstance(model, NeuronFusedModel)
    return model, target


def test_rounds_of_two_ranks_write_the_targets_own_text(neuron: Neuron, tmp_path: Path) -> None:
    said = list[str]()
    model, target = built(tmp_path, said=said)
    assert isinstance(model, RoundModel)
    engine, ties = engine_of(model, graphs=GraphRounds(model)), NearTies()
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 20).tolist()
    for params in SAMPLINGS:
        own = alone(LocalSession(engine_of(eager_of(target))), prompt, params, 12)
        assert_drafted_text(engine, whole(target), prompt, params, own, ties)
    assert ties.ties == 0
    assert said[-2:] == [
        "rounds, greedy: 32 of 32 choices equal",
        "rounds, temperature 1: 32 of 32 choices equal",
    ]
    assert {
        "round_b2_2x1_s72_sampled",
        "round_b2_2x1_s72_greedy",
        "draft_prefill_b1_t16_s72_greedy",
        COPY,
    } <= set(neuron.calls)


def test_a_round_answers_the_same_wherever_its_draft_lies(neuron: Neuron, tmp_path: Path) -> None:
    model, _ = built(tmp_path, ranks=1)
    straight, crossed = (both_rows(model, draft_rows) for draft_rows in ([0, 1], [1, 0]))
    assert straight == crossed
    assert straight[0] != straight[1]


def test_an_open_call_beside_rounds_takes_a_rule(neuron: Neuron, tmp_path: Path) -> None:
    model, target = built(tmp_path)
    tree = TokenTree(*np.array([[5, 7, 9, 11], [-1, 0, 0, 1]]))
    rule = adjustment(VOCABULARY, np.random.default_rng(6), len(tree), 9)
    answers = []
    for one in (model, eager_of(target)):
        sequence = ModelSequence(one, 1, SAMPLINGS[2])
        sequence.extend([5, 17, 23])
        ruled = sequence.prepare(tree)._replace(rule=lambda: rule, scoring=Scoring(2))
        answers += one.choose([ruled])
    assert MASKED.name in neuron.calls
    assert answers[0].tokens.tolist() == answers[1].tokens.tolist()
    for ours, theirs in zip(answers[0].logprobs or (), answers[1].logprobs or (), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def both_rows(model: NeuronFusedModel, draft_rows: Sequence[int]) -> list[list[int]]:
    """The answers of a round for two prompts, whose drafts lie in these rows."""
    segments = []
    for row, draft_row in enumerate(draft_rows):
        target = ModelSequence(model, row, SAMPLINGS[row])
        draft = ModelSequence(model.draft, draft_row, SAMPLINGS[row])
        for sequence in (target, draft):
            sequence.extend([5, 17, 23 + row])
        tree = blank_tree(FUSED_SHAPE, 9)
        part = draft.prepare(tree.prefix(FUSED_SHAPE.inner))
        segments.append(target.prepare(tree)._replace(beside=part))
    return [answer.tolist() for answer in model.rounds(segments)]


def test_a_draft_that_cannot_be_dealt_out_is_refused(neuron: Neuron, tmp_path: Path) -> None:
    target, draft = (
        write_checkpoint(tmp_path / "target"),
        write_checkpoint(tmp_path / "draft", num_attention_heads=1, num_key_value_heads=1),
    )
    with pytest.raises(InvalidRequest, match="attention heads"):
        NeuronBuilder(fused_spec_of(draft, 2), target, draft)
