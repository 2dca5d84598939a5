"""Rows that are copied: a session that starts from a copy makes the text of one that prefilled,
and the copied one notices nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from compile.build.build import Source, build_artifact
from compile.build.neuron_builder import NeuronBuilder
from compile.build.progress import LineProgress
from compile.spec import verify_bucket
from inference.backends import Model
from inference.backends.cuda import CudaModel
from inference.backends.timed import TimedModel, TimeProfile
from inference.candidates import BASE, Nodes, Proposal
from inference.engine.engine import Engine
from inference.engine.prefix_cache import WORTH_COPYING
from inference.engine.session import Session
from inference.model.checkpoint import fingerprint
from inference.order import Decode, End, Pace
from inference.sampling import SamplingParams
from tests.fake_neuron import Neuron
from tests.models import TINY, write_checkpoint
from tests.neuron_artifacts import (
    JUNK,
    ROWS,
    TREE,
    VOCABULARY,
    built_model,
    eager_of,
    engine_of,
    spec_of,
    whole,
)
from tests.test_cuda import Reruns

PROMPT = (
    np.random.default_rng(4).integers(0, VOCABULARY, 34).tolist()
)  # no near-ties: with 3 int8's text changes with the order of slots
OWN = [5, 7]
"""Tokens with which the second prompt goes on alone."""

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]
INSTANT = TimeProfile("instant", "a test", "nothing", 0.0, 0.0, 0.0, 0.0, (ROWS,), (2, 16), 8)


def eager(checkpoint: Path, folder: Path) -> Model:
    return eager_of(checkpoint)


def cuda(checkpoint: Path, folder: Path) -> Model:
    """As on a GPU, but that a recording runs its function again."""
    return CudaModel(whole(checkpoint), rows=ROWS, capacity=JUNK, max_nodes=16, recorder=Reruns())


def timed(checkpoint: Path, folder: Path) -> Model:
    return TimedModel(eager_of(checkpoint), INSTANT)


def openvino(checkpoint: Path, folder: Path) -> Model:
    pytest.importorskip("openvino", reason="outrider[openvino] is not installed")
    from compile.build.openvino_builder import OpenVinoBuilder
    from inference.backends.openvino import load_openvino

    checkpoint = write_checkpoint(folder / "wide", hidden_size=64, intermediate_size=96)
    spec = spec_of(
        1, [verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=True)], target="cpu", dtype="int8"
    )
    source = Source(
        checkpoint,
        fingerprint(checkpoint),
        "tokenizer",
        {**TINY, "hidden_size": 64, "intermediate_size": 96},
        (2,),
    )
    builder = OpenVinoBuilder(spec, checkpoint, VOCABULARY)
    return load_openvino(
        folder,
        build_artifact(spec, source, builder, folder, command="test", progress=LineProgress(print)),
    )


def neuron(checkpoint: Path, folder: Path) -> Model:
    """Two ranks, through the stand-in for AWS's packages."""
    return built_model(folder, checkpoint, spec_of(2), NeuronBuilder)


def uncopied(checkpoint: Path, folder: Path) -> Model:
    """A backend that cannot copy rows."""
    model = eager_of(checkpoint)
    model.copies_rows = False
    return model


Make = Callable[[Path, Path], Model]
COPYING: list[Make] = [eager, cuda, timed, openvino, neuron]
"""And what is compiled for this CPU, in tests/test_compiled.py."""


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


def generate(engine: Engine, session: Session, tokens: int) -> list[int]:
    """The next tokens, made alone."""
    before = session.length
    engine.decode(session, Decode(before + tokens))
    while session.end is End.NOT:
        assert engine.step()
    return session.tokens[before:]


def prefilled(
    engine: Engine, tenant: str, prompt: list[int], params: SamplingParams, tokens: int
) -> list[int]:
    """What a session makes that shares nothing with any other."""
    session, opened = engine.open(prompt, params, tenant=tenant)
    engine.finish(opened)
    assert opened.result().reused == 0
    text = generate(engine, session, tokens)
    engine.close(session)
    engine.step()
    return text


def guess(engine: Engine, session: Session, text: list[int]) -> None:
    """Ask for a forward with the next two tokens of this text, and with a wrong one that stands
    before them: what is kept does not lie in order.
    """
    at = session.length - session.prompt_length
    right, wrong = text[at : at + 2], (text[at] + 1) % VOCABULARY
    nodes = [Proposal(0, BASE, wrong, 0.9), Proposal(1, BASE, right[0], 0.8)]
    nodes += [Proposal(2, 1, token, 0.9) for token in right[1:]]
    base = session.length - 1
    engine.append(session, engine.join(session), Nodes(base, nodes))
    engine.go(session, base)


def shares(engine: Engine, params: SamplingParams) -> int:
    """Two sessions, the second of which begins as the first one went on while that one has
    candidates; tokens it reused.
    """
    first_text = prefilled(engine, "alone", PROMPT, params, 16)
    prompt = [*PROMPT, *first_text[:8], *OWN]
    second_text = prefilled(engine, "alone too", prompt, params, 10)
    first, opened = engine.open(PROMPT, params)
    engine.finish(opened)
    engine.decode(first, Decode(len(PROMPT) + len(first_text), pace=Pace.WAIT))
    while first.length < len(PROMPT) + 9:
        guess(engine, first, first_text)
        while engine.step():
            pass
    assert first.spent.nodes > first.spent.forwards  # all were in one forward
    guess(engine, first, first_text)
    second, opened = engine.open(prompt, params)
    engine.finish(opened)
    while engine.step():
        pass
    assert first.tokens == [*PROMPT, *first_text[: first.length - len(PROMPT)]]
    assert generate(engine, second, 5) == second_text[:5]
    generate(engine, first, len(PROMPT) + len(first_text) - first.length)
    assert first.tokens == [*PROMPT, *first_text]
    assert generate(engine, second, 5) == second_text[5:]
    engine.close(first)
    engine.close(second)
    engine.step()
    return opened.result().reused


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
    caches = [value.normal_() for value in vars(model).values() if isinstance(value, torch.Tensor)]
    before = [cache.clone() for cache in caches]
    model.copy_row(1, 0, 30)
    for old, new in zip(before, caches, strict=True):
        assert new[:, 0, :, :30].equal(old[:, 1, :, :30])
        assert new[:, 1].equal(old[:, 1])
        assert new[:, 0, :, 30:].equal(old[:, 0, :, 30:])


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
