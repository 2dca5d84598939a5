"""Rows that are copied: a session that starts from a copy makes the text of one that prefilled,
and the copied one notices nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from compile.build.neuron_builder import NeuronBuilder
from inference.backends import Model
from inference.backends.cuda import CudaModel
from inference.backends.timed import TimedModel, TimeProfile
from inference.engine.prefix_cache import WORTH_COPYING
from inference.sampling import SamplingParams
from tests.support.copied_rows import PROMPT, shares
from tests.support.fake_neuron import Neuron
from tests.support.fake_recorder import Reruns
from tests.support.models import write_checkpoint
from tests.support.neuron_artifacts import (
    JUNK,
    ROWS,
    built_model,
    eager_of,
    engine_of,
    spec_of,
    whole,
)

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]
INSTANT = TimeProfile("instant", "a test", "nothing", 0.0, 0.0, 0.0, 0.0, (ROWS,), (2, 16), 8)


def eager(checkpoint: Path, folder: Path) -> Model:
    return eager_of(checkpoint)


def cuda(checkpoint: Path, folder: Path) -> Model:
    """As on a GPU, but that a recording runs its function again."""
    return CudaModel(whole(checkpoint), rows=ROWS, capacity=JUNK, max_nodes=16, recorder=Reruns())


def timed(checkpoint: Path, folder: Path) -> Model:
    return TimedModel(eager_of(checkpoint), INSTANT)


def neuron(checkpoint: Path, folder: Path) -> Model:
    """Two ranks, through the stand-in for AWS's packages."""
    return built_model(folder, checkpoint, spec_of(2), NeuronBuilder)


def uncopied(checkpoint: Path, folder: Path) -> Model:
    """A backend that cannot copy rows."""
    model = eager_of(checkpoint)
    model.copies_rows = False
    return model


Make = Callable[[Path, Path], Model]
COPYING: list[Make] = [eager, cuda, timed, neuron]
"""And what is compiled for this CPU, in tests/inference/backends/test_compiled.py."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("copied") / "model")


@contextmanager
def made(make: Make, checkpoint: Path, folder: Path) -> Iterator[Model]:
    """The backend's model of the checkpoint, on a machine that has a Neuron device."""
    with pytest.MonkeyPatch.context() as patch:
        Neuron().install(patch, folder / "packages")
        yield make(checkpoint, folder / "artifact")


@pytest.fixture(scope="module", params=COPYING, ids=lambda make: make.__name__)
def model(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    with made(request.param, checkpoint, tmp_path_factory.mktemp("backend")) as model:
        yield model


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
def test_text_from_a_copied_row_is_text_from_a_prefilled_one_and_the_source_goes_on_as_before(
    model: Model, params: SamplingParams
) -> None:
    assert len(PROMPT) >= WORTH_COPYING
    assert shares(engine_of(model), params) == len(PROMPT) + 8


def test_where_rows_are_not_copied_the_same_text_comes_from_a_prefilled_row(
    checkpoint: Path, tmp_path: Path
) -> None:
    with made(uncopied, checkpoint, tmp_path) as model:
        assert not model.copies_rows
        for params in SAMPLINGS:
            assert shares(engine_of(model), params) == 0


def test_copying_touches_no_other_row_and_nothing_of_the_source(checkpoint: Path) -> None:
    model = eager_of(checkpoint)
    torch.manual_seed(0)
    caches = [held.normal_() for held in model.cache.tensors]
    assert caches
    before = [cache.clone() for cache in caches]
    model.copy_row(1, 0, 30)
    for old, new in zip(before, caches, strict=True):
        assert new[0, :30].equal(old[1, :30])
        assert new[1].equal(old[1])
        assert new[0, 30:].equal(old[0, 30:])


def test_where_rows_are_not_copied_a_free_row_gives_its_prefix_although_it_holds_more(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Else a short beginning of a long text would be computed again beside it."""
    with made(uncopied, checkpoint, tmp_path) as model:
        engine = engine_of(model)
        long, opened = engine.open([*PROMPT, *PROMPT[:20]], SamplingParams())
        engine.finish(opened)
        engine.close(long)
        engine.step()
        _, opened = engine.open([*PROMPT[:12], 1], SamplingParams())
        engine.finish(opened)
        assert opened.result().reused == 12
