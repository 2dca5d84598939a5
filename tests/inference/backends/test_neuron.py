"""Targets and fused rounds on a strict stand-in of Neuron: ranks, states, buckets and noise."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from compile.neuron.builder import NeuronBuilder
from compile.parallel import shards_evenly
from compile.spec import verify_bucket
from inference.backends import Segment
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import (
    COPY,
    FILL,
    Draw,
    NeuronFusedModel,
    NeuronModel,
    NoiseAhead,
)
from inference.engine.colocated.graph_rounds import GraphRounds, RoundModel, blank_tree
from inference.engine.sessions.local_session import LocalSession
from inference.errors import LimitExceeded, Unavailable
from inference.model.checkpoints.config import parse_config
from inference.model.choice.graph_choice import NoisePlace
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support import heads
from tests.support.equality import NearTies
from tests.support.fake_neuron import Neuron
from tests.support.models import SAMPLINGS, TINY, segment, sequence_after, write_checkpoint
from tests.support.neuron_artifacts import (
    FUSED_SHAPE,
    JUNK,
    MASKED,
    MORE,
    ROWS,
    TREE,
    VOCABULARY,
    build,
    built_model,
    eager_of,
    engine_of,
    fused_spec_of,
    spec_of,
    whole,
)
from tests.support.pairs import alone, assert_drafted_text
from tests.support.refusals import assert_refused

# ranks, changes of the tiny Llama of 4 heads and 61 ids
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "a key-value head a rank": (2, {}),
    "two key-value heads a rank": (2, {"num_key_value_heads": 4}),
    "one key-value head for both ranks": (2, {"num_key_value_heads": 1}),
    "key-value heads repeated in pairs": (4, {}),
    "tied embeddings": (2, {"tie_word_embeddings": True}),
    "biases": (2, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "qwen2": (4, {"model_type": "qwen2", "tie_word_embeddings": True}),
    "qwen3": (2, {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1}),
}


class Served(NamedTuple):
    """A target on two ranks with many graphs."""

    neuron: Neuron
    model: NeuronModel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = write_checkpoint(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        neuron = Neuron().install(patch, folder / "packages")
        return Served(neuron, built_model(folder / "artifact", checkpoint, spec_of(2, MORE)))


@pytest.mark.parametrize("name", MODELS)
def test_ranks_together_are_one_whole_model(neuron: Neuron, tmp_path: Path, name: str) -> None:
    """In what each layer returns of a text, and in the choices of a tree behind it."""
    ranks, changes = MODELS[name]
    checkpoint = write_checkpoint(tmp_path / "model", **changes)
    spec, prompt = spec_of(ranks, features=heads.KEPT), list(range(20, 40))
    tree = TokenTree(*np.array([[1, *range(50, 57)], [-1, 0, 0, 1, 1, 2, 3, 6]], dtype=np.int32))
    states, choices = [], []
    for model in (built_model(tmp_path / "artifact", checkpoint, spec), eager_of(checkpoint)):
        states.append(heads.kept_of_a_text(model, heads.KEPT, 1))
        sequence = sequence_after(model, prompt, 0, SamplingParams(0.8, seed=3))
        choices.append(sequence.choose(tree).tolist())
    torch.testing.assert_close(*states, atol=2e-5, rtol=1e-4)
    assert choices[0] == choices[1]


@pytest.mark.parametrize(("rows", "between"), [(ROWS, [COPY, FILL]), (1, [FILL])])
def test_every_graph_has_run_before_the_model_is_handed_out(
    neuron: Neuron, checkpoint: Path, tmp_path: Path, rows: int, between: list[str]
) -> None:
    """A single row has no graph that copies."""
    graph, said = verify_bucket(rows, TREE, JUNK, JUNK, sampled=True), list[str]()
    spec = replace(spec_of(1), buckets=(graph,), rows=rows)
    manifest = build(tmp_path / "artifact", checkpoint, spec)
    load_neuron(tmp_path / "artifact", manifest, said.append)
    assert neuron.calls == [graph.name, *between]
    assert {"tiny", "1", "trn1"} <= {*said[0].split()}
    assert said[-1].startswith(f"[{len(neuron.calls)}/{len(neuron.calls)}] fill_noise ran in ")


SAMPLED, PREFILL = SamplingParams(1.0, seed=1), "prefill_b1_t16_s72_greedy"
CHUNKS = [segment(row, 12)._replace(pick=np.array([11], dtype=np.int32)) for row in range(ROWS)]
ROUTES: list[tuple[list[Segment], list[str]]] = [
    ([segment(0, 1)], ["verify_b2_t2_s32_greedy"]),
    ([segment(0, 2, context=32)], ["verify_b2_t2_s32_greedy"]),
    ([segment(0, 2, context=33)], ["verify_b2_t2_s72_greedy"]),
    ([segment(0, 2), segment(1, 3)], ["verify_b2_t8_s32_greedy"]),
    ([segment(0, 2), segment(1, 2, SAMPLED)], ["verify_b2_t2_s32_sampled"]),
    ([segment(1, 8, SAMPLED)], ["verify_b1_t8_s72_sampled"]),
    (CHUNKS[:1], [PREFILL]),
    (CHUNKS, [PREFILL] * 2),
    ([CHUNKS[0], segment(1, 2, first=20)], [PREFILL, "verify_b2_t2_s32_greedy"]),
]


@pytest.mark.parametrize(("call", "graphs"), ROUTES)
def test_a_call_goes_to_the_smallest_graph_that_fits_or_to_several_in_turn(
    served: Served, call: list[Segment], graphs: list[str]
) -> None:
    """A chunk of a prompt goes apart from other rows. Each row is answered as alone."""
    del served.neuron.calls[:]
    together = [chosen.tokens.tolist() for chosen in served.model.choose(call)]
    assert [name for name in served.neuron.calls if name != FILL] == graphs
    assert together == [served.model.choose([row])[0].tokens.tolist() for row in call]
    assert served.model.padded(2, 12) == (2, 16)
    assert served.model.padded(1, 1) == (2, 2)


def test_nodes_that_see_different_contexts_are_refused(served: Served) -> None:
    call = segment(0, 2)._replace(context=np.zeros((2, 5), dtype=np.bool_))
    assert_refused(lambda: served.model.choose([call]), ["slots"], LimitExceeded)


def test_calls_from_two_threads_are_made_one_after_the_other(served: Served) -> None:
    """The stand-in fails in a call beside another."""

    def call(row: int) -> None:
        for _ in range(4):
            served.model.choose([segment(row, 4)])

    with ThreadPoolExecutor(ROWS) as pool:
        list(pool.map(call, range(ROWS)))


def test_a_nan_on_the_device_is_reported_as_a_defect(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    model = built_model(tmp_path / "artifact", checkpoint, spec_of(2))
    neuron.loaded[-1].states[0]["values_0"][:] = float("nan")
    assert_refused(lambda: model.choose([segment(0, 4, context=8, first=8)]), ["NaN"], Unavailable)


def test_bfloat16_weights_of_every_rank_are_bfloat16(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    """The fake refuses a weight whose type differs from the traced one, the norms' included."""
    model = built_model(tmp_path / "artifact", checkpoint, spec_of(2, dtype="bfloat16"))
    assert model.dtype == torch.bfloat16
    assert neuron.loaded[-1].read_from_neuron_buffer("keys_0", 1).dtype == torch.bfloat16
    assert max(alone(LocalSession(engine_of(model)), [1, 2, 3], SamplingParams(), 10)) < VOCABULARY


def test_what_cannot_be_divided_evenly_is_known() -> None:
    shape = TINY | {"num_attention_heads": 6, "hidden_size": 24}
    assert shards_evenly(parse_config(shape), 2)
    for changes in (
        {"num_attention_heads": 3, "num_key_value_heads": 1},
        {"num_key_value_heads": 3},
        {"intermediate_size": 25},
    ):
        assert not shards_evenly(parse_config(shape | changes), 2), changes


def test_noise_is_made_before_a_texts_first_call_and_then_ahead_of_calls(served: Served) -> None:
    """What lacks when a call comes is made first; what the next can need, while nobody waits."""
    params, calls = SamplingParams(1.0, seed=8), served.neuron.calls
    del calls[:]
    for step in range(12):
        served.model.choose([segment(0, 4, params, first=4 * step)])
    trees = [place for place, name in enumerate(calls) if name != FILL]
    assert calls[0] == FILL
    assert len(trees) == 12
    assert len(calls) - len(trees) <= 6


class Fused(NamedTuple):
    """A target with its draft in the graphs, on two ranks, and what its build printed. The draft
    has fewer heads of keys and values.
    """

    neuron: Neuron
    model: NeuronFusedModel
    target: Path
    lines: list[str]


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Fused:
    folder, lines = tmp_path_factory.mktemp("fused"), list[str]()
    target, draft = (
        write_checkpoint(folder / "target"),
        write_checkpoint(folder / "draft", num_hidden_layers=1, num_key_value_heads=2),
    )
    with pytest.MonkeyPatch.context() as patch:
        neuron = Neuron().install(patch, folder / "packages")
        builder = partial(NeuronBuilder, draft=draft)
        manifest = build(folder / "artifact", target, fused_spec_of(draft, 2), builder, lines)
        model = load_neuron(folder / "artifact", manifest, lambda line: None)
    assert isinstance(model, NeuronFusedModel)
    return Fused(neuron, model, target, lines)


def test_rounds_of_two_ranks_write_the_targets_own_text(fused: Fused) -> None:
    assert isinstance(fused.model, RoundModel)
    engine, ties = engine_of(fused.model, graphs=GraphRounds(fused.model)), NearTies()
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 20).tolist()
    ruled = SamplingParams(1.0, seed=5, repetition_penalty=1.3, logprobs=2)
    for params in (*SAMPLINGS[:3], ruled):
        own = alone(LocalSession(engine_of(eager_of(fused.target))), prompt, params, 12)
        assert_drafted_text(engine, whole(fused.target), prompt, params, own, ties)
    assert ties.ties == 0
    assert fused.lines[-2:] == [
        "rounds, greedy: 32 of 32 choices equal",
        "rounds, temperature 1: 32 of 32 choices equal",
    ]
    assert {
        "round_b2_2x1_s72_sampled",
        "round_b2_2x1_s72_greedy",
        "draft_prefill_b1_t16_s72_greedy",
        COPY,
        MASKED.name,  # of the text with a rule
    } <= set(fused.neuron.calls)


def test_a_round_answers_the_same_wherever_its_draft_lies(fused: Fused) -> None:
    straight, crossed = (both_rows(fused.model, draft_rows) for draft_rows in ([0, 1], [1, 0]))
    assert straight == crossed
    assert straight[0] != straight[1]


def both_rows(model: NeuronFusedModel, draft_rows: Sequence[int]) -> list[list[int]]:
    """The answers of a round for two prompts, whose drafts lie in these rows."""
    segments, tree = [], blank_tree(FUSED_SHAPE, 9)
    for row, draft_row in enumerate(draft_rows):
        text, params = [5, 17, 23 + row], SAMPLINGS[row]
        target = sequence_after(model, text, row, params)
        draft = sequence_after(model.draft, text, draft_row, params)
        part = draft.prepare(tree.prefix(FUSED_SHAPE.inner))
        segments.append(target.prepare(tree)._replace(beside=part))
    return [answer.tolist() for answer in model.rounds(segments)]


def test_an_answer_does_not_wait_for_the_next_noise_and_a_failure_is_told_to_the_next_call() -> (
    None
):
    go_on, calls = threading.Event(), list[int]()

    def fill(places: Sequence[NoisePlace]) -> None:
        calls.append(len(places))
        if len(calls) > 1:
            go_on.wait(10)
            raise Unavailable("the device is gone")

    noise = NoiseAhead(fill)
    noise.before([Draw(0, 1, 0, 3)])
    assert calls == [4]
    noise.after([Draw(0, 1, 0, 3)])
    noise.before([])  # of a greedy text: it does not wait
    go_on.set()
    with pytest.raises(Unavailable, match="gone"):
        noise.before([Draw(0, 1, 4, 7)])
