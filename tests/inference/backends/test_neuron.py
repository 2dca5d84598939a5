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
from inference.backends import Scoring, Segment
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import (
    COPY,
    FILL,
    Draw,
    NeuronFusedModel,
    NeuronModel,
    NoiseAhead,
)
from inference.backends.sequence import ModelSequence
from inference.engine.colocated.graph_rounds import GraphRounds, RoundModel, blank_tree
from inference.engine.sessions.local_session import LocalSession
from inference.errors import LimitExceeded, Unavailable
from inference.model.cache import cache_names
from inference.model.checkpoints.config import parse_config
from inference.model.choice.graph_choice import FILLED, WINDOW, NoisePlace
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.equality import NearTies
from tests.support.fake_neuron import Neuron
from tests.support.models import SAMPLINGS, TINY, adjustment, segment, write_checkpoint
from tests.support.neuron_artifacts import (
    FEW,
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
    """A target on two ranks with many graphs, and the checkpoint that it was made of."""

    neuron: Neuron
    model: NeuronModel
    checkpoint: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = write_checkpoint(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        neuron = Neuron().install(patch, folder / "packages")
        return Served(
            neuron, built_model(folder / "artifact", checkpoint, spec_of(2, MORE)), checkpoint
        )


def tree_of(root: int, seed: int) -> TokenTree:
    generator = np.random.default_rng(seed)
    parents = [-1, 0, 0, 1, 1, 2, 3, 6]
    return TokenTree(
        np.array([root, *generator.choice(VOCABULARY, 7, replace=False)], dtype=np.int32),
        np.array(parents, dtype=np.int32),
    )


@pytest.mark.parametrize("name", MODELS)
def test_ranks_together_are_one_whole_model(neuron: Neuron, tmp_path: Path, name: str) -> None:
    """Choices of trees in two rows, and all keys and values behind a partly accepted one."""
    ranks, changes = MODELS[name]
    checkpoint = write_checkpoint(tmp_path / "model", **changes)
    model, eager = (
        built_model(tmp_path / "artifact", checkpoint, spec_of(ranks)),
        eager_of(checkpoint),
    )
    params = SamplingParams(0.8, seed=3)
    pairs = [
        (ModelSequence(model, row, params), ModelSequence(eager, row, params))
        for row in range(ROWS)
    ]
    for row, pair in enumerate(pairs):
        for sequence in pair:
            sequence.extend(np.random.default_rng(row).integers(0, VOCABULARY, 20 + row).tolist())
    for seed in range(2):
        for row, (ours, theirs) in enumerate(pairs):
            tree = tree_of(row, seed)
            assert ours.choose(tree).tolist() == theirs.choose(tree).tolist()
            ours.commit(tree, (1, 4))
            theirs.commit(tree, (1, 4))
    device = neuron.loaded[-1]
    config = whole(checkpoint).config
    copies = max(1, ranks // config.kv_heads)
    names = cache_names(config.layers)
    for name_, expected in zip(names, eager.cache.tensors, strict=True):
        parts = [device.read_from_neuron_buffer(name_, rank) for rank in range(ranks)]
        heads = torch.cat(parts, 2).unflatten(2, (-1, config.head_dim))[:, :, ::copies]
        together = heads.flatten(2)
        torch.testing.assert_close(together[:, :JUNK], expected[:, :JUNK], atol=2e-5, rtol=1e-4)


def test_every_graph_has_run_before_the_model_is_handed_out(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    built_model(tmp_path / "artifact", checkpoint, spec_of(2))
    assert sorted(neuron.calls) == sorted([COPY, FILL, *(bucket.name for bucket in FEW)])


@pytest.mark.parametrize(
    ("call", "graph"),
    [
        ([segment(0, 1)], "verify_b2_t2_s32_greedy"),
        ([segment(0, 2, context=32)], "verify_b2_t2_s32_greedy"),
        ([segment(0, 2, context=33)], "verify_b2_t2_s72_greedy"),
        ([segment(0, 2), segment(1, 3)], "verify_b2_t8_s32_greedy"),
        ([segment(0, 2), segment(1, 2, SamplingParams(1.0, seed=1))], "verify_b2_t2_s32_sampled"),
        (
            [segment(0, 12)._replace(pick=np.array([11], dtype=np.int32))],
            "prefill_b1_t16_s72_greedy",
        ),
        ([segment(1, 8, SamplingParams(1.0, seed=1))], "verify_b1_t8_s72_sampled"),
    ],
)
def test_a_call_goes_to_the_smallest_graph_that_fits(
    served: Served, call: list[Segment], graph: str
) -> None:
    served.model.choose(call)
    assert [name for name in served.neuron.calls if name != FILL][-1] == graph


def test_rows_that_no_graph_holds_together_are_answered_in_turn(served: Served) -> None:
    """Prompts have graphs of one row; a chunk of one goes apart from another row's tree."""
    chunks = [segment(row, 12)._replace(pick=np.array([11], dtype=np.int32)) for row in range(ROWS)]
    alone_ = [served.model.choose([chunk])[0].tokens.tolist() for chunk in chunks]
    del served.neuron.calls[:]
    assert [one.tokens.tolist() for one in served.model.choose(chunks)] == alone_
    assert served.neuron.calls == ["prefill_b1_t16_s72_greedy"] * 2
    tree = segment(1, 2, first=20)
    found = served.model.choose([chunks[0], tree])
    assert found[0].tokens.tolist() == alone_[0]
    assert found[1].tokens.tolist() == served.model.choose([tree])[0].tokens.tolist()
    assert served.neuron.calls[2:4] == ["prefill_b1_t16_s72_greedy", "verify_b2_t2_s32_greedy"]
    assert served.model.padded(2, 16) == (2, 16)
    assert served.model.padded(1, 8) == (1, 8)


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


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 3, "num_key_value_heads": 1},
        {"num_key_value_heads": 3},
        {"intermediate_size": 25},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_cannot_be_divided_evenly_is_known(changes: dict[str, int]) -> None:
    shape = TINY | {"num_attention_heads": 6, "hidden_size": 24}
    assert shards_evenly(parse_config(shape), 2)
    assert not shards_evenly(parse_config(shape | changes), 2)


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


def test_a_single_row_has_no_graph_that_copies(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    buckets = (verify_bucket(1, TREE, JUNK, JUNK, sampled=True),)
    built_model(tmp_path / "artifact", checkpoint, replace(spec_of(1), buckets=buckets, rows=1))
    assert neuron.calls == [buckets[0].name, FILL]


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
    for params in SAMPLINGS[:3]:
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
    } <= set(fused.neuron.calls)


def test_a_round_answers_the_same_wherever_its_draft_lies(fused: Fused) -> None:
    straight, crossed = (both_rows(fused.model, draft_rows) for draft_rows in ([0, 1], [1, 0]))
    assert straight == crossed
    assert straight[0] != straight[1]


def test_an_open_call_beside_rounds_takes_a_rule(fused: Fused) -> None:
    tree = TokenTree(*np.array([[5, 7, 9, 11], [-1, 0, 0, 1]]))
    rule = adjustment(VOCABULARY, np.random.default_rng(6), len(tree), 9)
    answers = []
    for model in (fused.model, eager_of(fused.target)):
        sequence = ModelSequence(model, 1, SAMPLINGS[2])
        sequence.extend([5, 17, 23])
        ruled = sequence.prepare(tree)._replace(rule=lambda: rule, scoring=Scoring(2))
        answers += model.choose([ruled])
    assert MASKED.name in fused.neuron.calls
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


class Device:
    """Windows as a device keeps them, and the calls that filled them."""

    def __init__(self) -> None:
        self.window: dict[tuple[int, int], NoisePlace] = {}
        self.calls: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails = False

    def fill(self, places: Sequence[NoisePlace]) -> None:
        self.go_on.wait(10)
        if self.fails:
            raise Unavailable("the device is gone")
        assert 1 <= len(places) <= FILLED
        self.calls.append(len(places))
        self.window |= {(place.row, place.position % WINDOW): place for place in places}

    def holds(self, draw: Draw) -> bool:
        return all(
            self.window.get((draw.row, position % WINDOW))
            == NoisePlace(draw.row, position, draw.seed)
            for position in range(draw.first, draw.last + 1)
        )


def test_every_call_finds_its_noise_however_texts_grow() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    first = 5
    for depth in (0, 3, 15, 15, 1, 15, 0, 7, 15):
        draws = [Draw(row, 40 + row, first, first + depth) for row in (0, 2)]
        noise.before(draws)
        assert all(device.holds(draw) for draw in draws)
        noise.after(draws)
        first += depth + 1  # all of it is accepted


def test_a_text_that_goes_on_waits_for_its_first_noise_only() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    noise.before([Draw(0, 1, 10, 14)])
    assert device.calls == [5]
    for first in range(10, 90, 5):
        noise.after([Draw(0, 1, first, first + 4)])
        noise.before([])  # of a greedy text: it does not wait
        noise.before([Draw(0, 1, first + 4, first + 4)])  # held: it waits for the device alone
        made = len(device.calls)
        noise.before([Draw(0, 1, first + 5, first + 9)])
        assert len(device.calls) == made
    assert len(device.calls) < 16


def test_another_text_in_a_row_finds_none_of_the_noise_before() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    for seed, first in ((1, 10), (2, 10), (2, 3)):
        noise.before([Draw(0, seed, first, first + 7)])
        assert device.holds(Draw(0, seed, first, first + 7))
    assert device.calls == [8, 8, 7]


def test_an_answer_does_not_wait_for_the_next_noise_and_a_failure_is_told_to_the_next_call() -> (
    None
):
    device = Device()
    noise = NoiseAhead(device.fill)
    noise.before([Draw(0, 1, 0, 3)])
    device.go_on.clear()
    device.fails = True
    noise.after([Draw(0, 1, 0, 3)])
    device.go_on.set()
    with pytest.raises(Unavailable, match="gone"):
        noise.before([Draw(0, 1, 4, 7)])
