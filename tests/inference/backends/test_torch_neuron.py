"""A target on native PyTorch: ranks on the CPU, through a strict stand-in for its compiler."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from compile.spec import prefill_bucket
from inference.backends.torch_neuron import RankPlan, compiled_graphs
from inference.backends.torch_neuron_ranks import Ranks
from inference.errors import Unavailable, UnsupportedModel
from inference.model.cache import empty_cache
from inference.model.verify_graph import example_inputs
from tests.support.models import tiny_decoder, write_checkpoint
from tests.support.native_targets import native_spec, prepared
from tests.support.neuron_artifacts import (
    JUNK,
    ROWS,
    VOCABULARY,
)
from tests.support.strict_torch_neuron import CPU


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


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
