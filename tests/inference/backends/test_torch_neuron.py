"""A target on native PyTorch: two ranks on the CPU, through a strict stand-in for TorchNeuron's
compiler and gloo in place of its collectives.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from compile.spec import prefill_bucket
from inference.backends.neuron import NeuronModel
from inference.backends.torch_neuron import GRAPHS, RankPlan, compiled_graphs
from inference.backends.torch_neuron_ranks import Ranks
from inference.drafters.round_proposer import BestFirst
from inference.engine.local_session import LocalSession
from inference.errors import Unavailable, UnsupportedModel
from inference.model.cache import empty_cache
from inference.model.decoder import Decoder
from inference.model.verify_graph import example_inputs
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from tests.support.copied_rows import PROMPT, shares
from tests.support.drafts import alone, nudged, rounds, speculated
from tests.support.equality import NearTies, assert_same_text
from tests.support.models import tiny_decoder, write_checkpoint
from tests.support.native_targets import native_spec, prepared
from tests.support.neuron_artifacts import (
    JUNK,
    ROWS,
    VOCABULARY,
    eager_of,
    engine_of,
    whole,
)
from tests.support.strict_torch_neuron import CPU, strict

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=5), SamplingParams(1.0, seed=2**40 + 3)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeuronModel]:
    artefact, spec = tmp_path_factory.mktemp("artefact") / "out", native_spec(2)
    manifest = prepared(artefact, checkpoint, spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(artefact / GRAPHS))
        ranks = Ranks(RankPlan(artefact, spec, CPU))
        yield NeuronModel(ranks, manifest, lambda line: None)
        ranks.close()


@pytest.fixture(scope="module")
def target(checkpoint: Path) -> Decoder:
    return whole(checkpoint)


def prompt_of(length: int) -> list[int]:
    prompt: list[int] = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
    return prompt


@pytest.mark.slow
@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("draft", ["none", "a tree that disagrees"])
def test_two_ranks_write_the_targets_own_text(
    served: NeuronModel,
    target: Decoder,
    checkpoint: Path,
    ties: NearTies,
    params: SamplingParams,
    draft: str,
) -> None:
    """Three sessions one after the other, so that rows are used again."""
    engine, reference = engine_of(served), engine_of(eager_of(checkpoint))

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        session = LocalSession(engine)
        if draft == "none":
            return alone(session, prompt, params, tokens)
        proposer: Proposer = rounds(nudged(target), BestFirst(6, 3))
        return speculated(session, proposer, prompt, params, tokens)

    for length in (1, 17, 30):
        prompt = prompt_of(length)
        own = alone(LocalSession(reference), prompt, params, 20)
        assert_same_text(target, prompt, params, own, produce, ties)


@pytest.mark.slow
@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
def test_a_session_that_begins_alike_copies_the_row_on_every_rank(
    served: NeuronModel, params: SamplingParams
) -> None:
    assert shares(engine_of(served), params) == len(PROMPT) + 8


def test_a_call_of_another_shape_is_an_error_and_no_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    bucket, wider = (prefill_bucket(1, nodes, JUNK, JUNK) for nodes in (16, 3))
    decoder = tiny_decoder(vocabulary=VOCABULARY, num_hidden_layers=1)
    cache = empty_cache(decoder.config, ROWS, JUNK, torch.float32)
    plan = RankPlan(tmp_path, native_spec(1), CPU)
    graph = compiled_graphs(plan, decoder, cache, None)[bucket.name]
    where = [tensor.data_ptr() for tensor in cache.tensors]
    with torch.no_grad():
        graph(**example_inputs(bucket))
        graph(**example_inputs(bucket))
        assert [tensor.data_ptr() for tensor in cache.tensors] == where
        assert cache.keys[0][0, JUNK].any(), "the call wrote nothing"
        with pytest.raises(FailOnRecompileLimitHit):
            graph(**example_inputs(wider))


REFUSED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.argmax(-1),
    lambda x: x.index_copy(0, torch.tensor([0]), x[:1]),
    lambda x: x.double() + 1,
    lambda x: x[x.nonzero()[0]],
]


@pytest.mark.parametrize("run", REFUSED)
def test_the_stand_in_refuses_what_torch_neuron_refuses(
    run: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    compiled = torch.compile(run, backend=strict, fullgraph=True, dynamic=False)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3, 4))


@pytest.mark.slow
def test_a_lost_rank_is_told_at_once_and_ends_every_call(checkpoint: Path, tmp_path: Path) -> None:
    artefact, spec = tmp_path / "out", native_spec(2)
    prepared(artefact, checkpoint, spec)
    told, heard = list[str](), threading.Event()

    def lost(why: str) -> None:
        told.append(why)
        heard.set()

    others = multiprocessing.active_children()
    ranks = Ranks(RankPlan(artefact, spec, CPU), lost)
    mine = [each for each in multiprocessing.active_children() if each not in others]
    next(each for each in mine if each.name == "rank 1").kill()
    assert heard.wait(30)
    assert "rank 1 of the target ended (exit code -9)" in told[0]
    with pytest.raises(Unavailable, match="rank 1 of the target ended"):
        ranks(spec.buckets[0].name, example_inputs(spec.buckets[0]))
    ranks.close()


@pytest.mark.slow
def test_what_keeps_a_rank_from_loading_is_raised_where_it_was_asked_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    artefact, spec = tmp_path / "out", native_spec(1)
    prepared(artefact, checkpoint, spec)
    (artefact / "weights/config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        Ranks(RankPlan(artefact, spec, CPU))
