"""A model is measured in bounded time, into a table of what its calls take, which is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.gguf.trees import GgufTrees
from inference.backends.sequence import ModelSequence, Slots
from inference.model.checkpoints.config import parse_config
from inference.planner.profiling import CONTEXT, MAX_SECONDS, Tell, survey_draft, survey_target
from inference.sampling import SamplingParams
from inference.times import Shape, Times
from inference.tree.token_tree import TokenTree
from tests.support.exact import HandModel
from tests.support.gguf_models import Cells, model_of
from tests.support.models import TINY, random_decoder, tiny_model

LENGTH = 500


class Clocked(HandModel):
    """A Model on a clock of its own. first: factor of the first call of a shape"""

    rows, capacity, max_nodes, masks = 4, 1_000, 256, False

    def __init__(
        self, seconds: Callable[[int, int], float], sizes: Sequence[int] = (), first: float = 3.0
    ) -> None:
        self.now, self.calls = 0.0, list[tuple[int, int]]()
        self.seconds, self.sizes, self.first = seconds, sizes, first

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [Chosen(ranked.ids[:, 0]) for ranked in self.rank(segments, 1)]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        shape = self.padded(len(segments), max(len(segment.tokens) for segment in segments))
        for segment in segments:
            assert segment.context.shape[1] == CONTEXT
            assert segment.context.all()
        self.now += self.seconds(*shape) * (1.0 if shape in self.calls else self.first)
        self.calls.append(shape)
        ids = np.zeros((shape[1], k), dtype=np.int32)
        return [Ranked(ids, ids.astype(np.float32)) for _ in segments]


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clocked]:
    def make(*arguments: Any, **options: Any) -> Clocked:
        model = Clocked(*arguments, **options)
        clock = SimpleNamespace(perf_counter=lambda: model.now)
        monkeypatch.setattr("inference.planner.profiling.time", clock)
        return model

    return make


def ignored(line: str) -> None:
    """Progress."""


def draft_times(model: Model, length: int, width: int) -> dict[int, float]:
    times = survey_draft(model, length, width).run(ignored)
    return {nodes: seconds for (_, nodes), seconds in times.items()}


def target_times(
    model: Model, length: int, rows: int, nodes: int, tell: Tell = ignored
) -> dict[Shape, float]:
    return survey_target(model, length, rows, nodes, Times()).run(tell)


def test_a_model_is_measured_at_the_shapes_it_computes_without_its_first_calls(
    clocked: Callable[..., Clocked],
) -> None:
    times = draft_times(clocked(lambda rows, nodes: 0.010 + 0.001 * nodes), LENGTH, 20)
    assert times == pytest.approx({1: 0.011, 2: 0.012, 4: 0.014, 8: 0.018, 16: 0.026, 20: 0.030})
    table = target_times(clocked(lambda rows, nodes: 0.010 + 0.001 * rows * nodes), LENGTH, 4, 16)
    shapes = product((1, 2, 4), (1, 2, 4, 8, 16))
    assert table == pytest.approx({shape: 0.010 + 0.001 * math.prod(shape) for shape in shapes})
    padded = clocked(lambda rows, nodes: 0.001 * nodes, sizes=(8, 32))
    table = target_times(padded, LENGTH, 1, 32)
    assert table == pytest.approx({(1, 8): 0.008, (1, 32): 0.032})
    assert Times(table).seconds(1, 9) == pytest.approx(0.032)
    slow = clocked(lambda rows, nodes: 60.0)
    assert set(draft_times(slow, LENGTH, 4).values()) == {60.0}
    assert slow.calls == [(1, 1), (1, 1)]


def test_a_slow_model_is_measured_while_there_is_time(clocked: Callable[..., Clocked]) -> None:
    told: list[str] = []
    model = clocked(lambda rows, nodes: 0.3 + 0.05 * rows * nodes, first=1.0)
    times = target_times(model, LENGTH, 4, 64, told.append)
    assert model.now < MAX_SECONDS + 2
    assert (4, 64) not in model.calls
    assert max(map(math.prod, times)) == max(map(math.prod, model.calls))
    assert 13.1 <= Times(times, measured=True).seconds(4, 64) < 18
    assert told[0].startswith("measured ")


def of_cells() -> Model:
    return model_of(GgufTrees(Cells(), rows=2, capacity=128, batch=256))


@pytest.mark.parametrize("made", [lambda: tiny_model(rows=2), of_cells], ids=["eager", "gguf"])
def test_measuring_beside_what_is_kept_leaves_it_as_it_was(made: Callable[[], Model]) -> None:
    measured, fresh = made(), made()
    tree = TokenTree(np.array([5, 7, 9]), np.array([-1, 0, 0]))
    chosen = []
    for model in (measured, fresh):
        sequences = [ModelSequence(model, row, SamplingParams()) for row in range(2)]
        for row, sequence in enumerate(sequences):
            sequence.extend(list(range(row, row + 20 + 40 * row)))
            sequence.choose(tree)
            sequence.commit(tree, [2])  # its slot is not its position
        survey = survey_target(model, 40, 2, 8, Times())  # reads a context of 32 tokens
        slots = [sequence.slots for sequence in sequences]
        while model is measured and not survey.done:
            survey.advance(slots)
        chosen.append([sequence.choose(tree).tolist() for sequence in sequences])
    assert chosen[0] == chosen[1]
    sequences[0].slots.trim(0)  # a row that gave its text up: its slots are of other positions
    while not survey.done:
        survey.advance([sequences[0].slots, Slots(fresh.capacity)])
    assert (2, 8) in survey.table()


def test_a_broken_off_survey_goes_on_call_by_call(clocked: Callable[..., Clocked]) -> None:
    model = clocked(lambda rows, nodes: 0.1 + 0.01 * rows * nodes, first=1.0)
    survey = survey_target(model, LENGTH, 4, 64, Times())
    early = survey.run(ignored, 0.3)
    assert not survey.done
    assert model.now < 1.0
    assert (1, 16) in early
    assert (1, 64) not in early
    survey.longest = 0.5
    before = len(model.calls)
    while not survey.done:
        now = model.now
        survey.advance()
        assert model.now - now <= 0.5
    assert len(model.calls) > before
    assert survey.table()[1, 16] == pytest.approx(0.26)
    assert (4, 64) not in model.calls
    survey.longest = 5.0
    assert not survey.done, "what took too long for then is left"


def test_one_node_and_a_wide_call_are_measured_first(clocked: Callable[..., Clocked]) -> None:
    """The first call of all, which brings the weights in, tells nothing."""
    model = clocked(lambda rows, nodes: 0.36 * nodes, first=1.0)
    survey = survey_target(model, LENGTH, 1, 64, Times())
    survey.run(ignored, 0.5)
    sizes = 1, 2, 4, 8, 16
    assert [size for size in sizes if survey.times.samples(1, size)] == [1, 16]
    assert survey.table() == pytest.approx({(1, size): 0.36 * size for size in sizes})
    assert (1, 64) not in survey.table()
    slow = clocked(lambda rows, nodes: 5.0 * nodes, first=1.0)
    assert survey_target(slow, LENGTH, 1, 64, Times()).run(ignored, 0.5) == {(1, 1): 5.0}


@pytest.mark.parametrize(("capacity", "length"), [(20, 256), (200, 20), (10, 10)])
def test_a_small_model_is_measured_with_the_context_it_has(capacity: int, length: int) -> None:
    least = min(capacity, length, 16)
    model = EagerModel(
        random_decoder(parse_config(TINY), positions=length, vocabulary=61, seed=1),
        rows=2,
        capacity=capacity,
        max_nodes=16,
    )
    assert max(draft_times(model, length, 64)) == min(capacity, 16)
    assert max(target_times(model, length, 2, 64)) == (2, least)
