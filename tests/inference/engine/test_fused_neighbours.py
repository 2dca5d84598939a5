"""Sessions beside those that a graph drafts for keep what they were promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import pytest

from inference.backends import Segment
from inference.engine.engine import Engine
from inference.engine.graph_rounds import GraphRounds
from inference.engine.session import Session
from inference.engine.tuning import TUNING
from inference.model.decoder import Decoder
from inference.order import Decode, End
from inference.sampling import SamplingParams
from inference.times import LatencyModel
from inference.tree import IntArray
from inference.tree_shape import Branches
from tests.support.clock import Clock
from tests.support.exact import Cost, asked, chain, finish, free, opened, text_of
from tests.support.fused_models import eager_fused
from tests.support.pairs import VOCABULARY, decoder, engine, perturbed

LENGTH, DEPTH = 400, 4
RIGHT, CLOSE, USELESS = decoder(1), perturbed(1, 0.02), decoder(99, layers=1)
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)]


def cpu(rows: int, nodes: int) -> float:
    """Two tokens take twice as long as one."""
    return 0.004 + 0.018 * rows * nodes


def neuron(rows: int, nodes: int) -> float:
    """A wide forward is dear, whatever is in it."""
    return 0.040 if nodes <= 1 else 0.065


DEVICES = {"cpu": cpu, "neuron": neuron}


class Graph:
    """A target that drafts in its graphs, on a clock of the test. rounds: sessions in each."""

    def __init__(self, draft: Decoder, cost: Cost) -> None:
        self.clock, self.rounds, self.cost = Clock(), list[int](), cost
        self.model = model = eager_fused(RIGHT, draft, Branches.chain(DEPTH), rows=4, length=LENGTH)
        model.padded = lambda rows, nodes: (rows, nodes)  # type: ignore[method-assign]
        self._timed(model, "choose", cost)
        self._timed(model, "rounds", self._round)
        self._timed(model.draft, "choose", lambda rows, nodes: cost(rows, 1) / 4)
        shapes = product(range(1, 5), (1, 2, 4, 8, 16, 32))
        self.engine = Engine(
            model,
            sequence_length=LENGTH,
            max_tree_nodes=1 + DEPTH,
            vocabulary=VOCABULARY,
            times=LatencyModel({shape: cost(*shape) for shape in shapes}, measured=True),
            graphs=GraphRounds(model),
            clock=self.clock,
        )

    def asked(
        self,
        kinds: Sequence[tuple[bool, int]],
        params: SamplingParams = SAMPLINGS[0],
    ) -> list[Session]:
        """Texts after [5, 17, 0], [5, 17, 1], ... kinds: whether each asks, and its tokens"""
        sessions = [opened(self.engine, [5, 17, last], params) for last in range(len(kinds))]
        for session, (beside, tokens) in zip(sessions, kinds, strict=True):
            order = Decode(3 + tokens, credit=512, beside=beside)
            self.engine.decode(session, order)
        return sessions

    def measured(self) -> None:
        """A text alone, by which rounds are known."""
        [session] = self.asked([(True, 20)])
        finish(self.engine, session)
        self.engine.close(session)
        self.rounds.clear()

    def step(self, sessions: Sequence[Session]) -> None:
        """One forward; all clients have read what there is."""
        assert self.engine.step(), "somebody can go on"
        for session in sessions:
            self.engine.acknowledge(session, session.length)

    def _round(self, rows: int, nodes: int) -> float:
        self.rounds.append(rows)
        return self.cost(rows, nodes) + DEPTH * self.cost(rows, 1) / 6

    def _timed(self, model: object, name: str, cost: Cost) -> None:
        call: Callable[[Sequence[Segment]], list[IntArray]] = getattr(model, name)

        def timed(segments: Sequence[Segment]) -> list[IntArray]:
            self.clock.now += cost(len(segments), max(len(one.tokens) for one in segments))
            return call(segments)

        setattr(model, name, timed)


@cache
def alone(last: int, params: SamplingParams = SAMPLINGS[0]) -> list[int]:
    """The target's own text after the prompt that ends in this token."""
    served = engine(decoder(1))
    finish(served, session := asked(served, [5, 17, last], 217, params))
    return text_of(session)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("draft", [RIGHT, USELESS], ids=["right", "useless"])
@pytest.mark.parametrize("drafted", [1, 3])
@pytest.mark.parametrize("proposed", [False, True], ids=["bare", "with candidates"])
def test_who_did_not_ask_for_rounds_keeps_its_root_only_rate(
    device: str, draft: Decoder, drafted: int, proposed: bool
) -> None:
    """0.98 of what forwards of the same sessions' roots give it, at any moment."""
    graph = Graph(draft, DEVICES[device])
    graph.measured()
    sessions = graph.asked([(last < drafted, 200) for last in range(4)])
    others, began, numbers = sessions[drafted:], graph.clock.now, 0
    streams = [graph.engine.join(one) for one in others]
    while all(one.end is End.NOT for one in sessions):
        for index, (one, stream) in enumerate(zip(others, streams, strict=True)):
            if proposed:
                ahead = alone(drafted + index)[len(text_of(one)) :][:7]
                graph.engine.append(one, stream, chain(one.length - 1, ahead, 0.9, first=numbers))
        numbers += 7
        graph.step(sessions)
        promised = TUNING.least_rate * (graph.clock.now - began) / graph.cost(4, 1)
        assert all(len(text_of(one)) >= promised - TUNING.most_deficit for one in others)
    for last, one in enumerate(sessions):
        assert text_of(one) == alone(last)[: len(text_of(one))]


def test_rounds_are_made_beside_others_that_are_ahead_and_where_they_pay() -> None:
    """Three texts get five tokens each in less time than two forwards take."""
    graph = Graph(RIGHT, free)
    graph.measured()
    sessions = graph.asked([(last < 3, 200) for last in range(4)])
    other, numbers = sessions[3], 0
    stream = graph.engine.join(other)
    while all(one.end is End.NOT for one in sessions):
        ahead = alone(3)[len(text_of(other)) :][:7]
        graph.engine.append(other, stream, chain(other.length - 1, ahead, 0.9, first=numbers))
        numbers += 7
        graph.step(sessions)
    assert 3 in graph.rounds
    assert len(text_of(sessions[0])) > 1.5 * sessions[0].spent.forwards


def test_a_draft_that_brings_nothing_holds_up_nobody_else() -> None:
    graph = Graph(USELESS, neuron)
    graph.measured()
    sessions = graph.asked([(True, 60), (False, 60)])
    while all(one.end is End.NOT for one in sessions):
        graph.step(sessions)
    assert not graph.rounds


def test_a_text_goes_on_in_rounds_when_it_is_alone_again() -> None:
    graph = Graph(RIGHT, neuron)
    sessions = graph.asked([(True, 200), (False, 40)])
    while sessions[1].end is End.NOT:
        graph.step(sessions)
    assert not graph.rounds, "none was measured, so nobody knows whether one pays"
    before, forwards = len(text_of(sessions[0])), sessions[0].spent.forwards
    finish(graph.engine, sessions[0])
    assert text_of(sessions[0]) == alone(0)[:200]
    assert sessions[0].spent.forwards - forwards <= 2 + (200 - before) / (1 + DEPTH)


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
@pytest.mark.parametrize("draft", [CLOSE, USELESS], ids=["close", "useless"])
def test_texts_of_every_kind_at_once_are_the_targets_own(
    params: SamplingParams, draft: Decoder
) -> None:
    """In rounds, and in forwards with candidates and without."""
    graph = Graph(draft, neuron)
    graph.measured()
    kinds = [(True, 45), (True, 30), (False, 20), (False, 12)]
    sessions = graph.asked(kinds, params)
    proposed = sessions[2]
    stream, numbers = graph.engine.join(proposed), 0
    while any(one.end is End.NOT for one in sessions):
        ahead = [*alone(2, params)[len(text_of(proposed)) :][:3], 7]
        graph.engine.append(proposed, stream, chain(proposed.length - 1, ahead, 0.9, first=numbers))
        numbers += 4
        graph.step(sessions)
    for last, (one, (_, tokens)) in enumerate(zip(sessions, kinds, strict=True)):
        assert text_of(one) == alone(last, params)[:tokens]
    assert graph.rounds
