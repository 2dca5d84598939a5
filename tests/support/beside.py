"""The random target of tests/support/pairs.py with a draft beside it: a model or a head on a clock
of the test, or a model in its graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from inference.backends import Chosen, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.eagle_model import EagleModel, FeatureSequence
from inference.backends.graphs.compiled import CompiledModel
from inference.backends.graphs.fused import FusedModel
from inference.backends.substitute_model import SharedCacheModel, SharedSequence
from inference.drafters.growing_proposer import Draft
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.colocated.graph_rounds import GraphRounds
from inference.engine.engine import Engine
from inference.files.artifact import Bucket, DraftBucket, RoundBucket
from inference.loop.draft_tuning import TUNING
from inference.model.cache import empty_cache
from inference.model.decoder import Decoder
from inference.model.eagle_head import OfTarget, read_head
from inference.model.graphs.round_graph import RoundGraph
from inference.model.graphs.verify_graph import VerifyGraph
from inference.times import Times
from inference.tree.tree_shape import Branches
from tests.support import heads, pairs
from tests.support.clock import Clock
from tests.support.pairs import knowledge

FORWARD, CALL = 0.010, 0.001
"""Seconds of a forward of the target and of a call of its draft."""

OWN = 128
"""Slots of candidates in a row of the target's own layers."""


class TimedTarget(EagerModel):
    """A target that computes, and whose forwards take FORWARD."""

    def __init__(self, decoder: Decoder, clock: Clock, rows: int = 2) -> None:
        super().__init__(decoder, rows=rows, capacity=pairs.SEQUENCE_LENGTH + 64, max_nodes=64)
        self._clock = clock

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self._clock.now += FORWARD
        return super().choose(segments)


def engine_beside(
    target: TimedTarget, draft: Draft, room: int, clock: Clock, *, copies: bool = False
) -> Engine:
    times = {(row, node): FORWARD for row in (1, 2, 4) for node in (1, 2, 4, 8, 16, 32, 64)}
    known = partial(knowledge, CALL, 64)
    return Engine(
        target,
        sequence_length=pairs.SEQUENCE_LENGTH,
        max_tree_nodes=64,
        vocabulary=pairs.VOCABULARY,
        times=Times(times, measured=True),
        drafter=ColocatedDrafter(draft, known, room=room, clock=clock, copies=copies),
        clock=clock,
    )


def model_beside(draft: Decoder, rows: int = 2, *, copies: bool = False) -> Engine:
    """An engine with this model beside its target."""
    clock, capacity = Clock(), pairs.SEQUENCE_LENGTH + TUNING.room
    model = EagerModel(draft, rows=rows, capacity=capacity, max_nodes=128)
    target = TimedTarget(pairs.decoder(1), clock, rows)
    return engine_beside(target, Draft(model), TUNING.room, clock, copies=copies)


class TimedHead(EagleModel):
    """A head whose calls take CALL."""

    clock: Clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now += CALL
        return super().rank(segments, k)


def head_beside(head: Path, rows: int = 2) -> Engine:
    """An engine with the head of this directory beside its target."""
    clock, length = Clock(), pairs.SEQUENCE_LENGTH
    target = TimedTarget(pairs.decoder(1), clock, rows)
    of_target = read_head(head, OfTarget.of(pairs.decoder(1)), length)
    model = TimedHead(of_target, rows=rows, capacity=length + TUNING.room, max_nodes=128)
    target.keep_features(heads.KEPT)
    model.clock = clock
    draft = Draft(model, sequence=partial(FeatureSequence, target))
    return engine_beside(target, draft, TUNING.room, clock)


class TimedShared(SharedCacheModel):
    """A draft on the cache of its target, which it only reads. Its calls take CALL."""

    ranked = 0

    def __init__(self, decoder: Decoder, target: EagerModel, clock: Clock) -> None:
        super().__init__(decoder, target, slots=OWN, max_nodes=64)
        self._clock = clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.ranked += 1
        self._clock.now += CALL
        before = [cache.clone() for cache in self.target_cache.tensors]
        answer = super().rank(segments, k)
        assert all(map(torch.equal, before, self.target_cache.tensors))
        return answer

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        raise AssertionError("a prompt is computed for it")


def layers_beside(clock: Clock | None = None, rows: int = 2) -> tuple[Engine, TimedShared]:
    """An engine with its target's own layers beside it."""
    clock = clock or Clock()
    target = TimedTarget(pairs.decoder(1), clock, rows)
    shared = TimedShared(pairs.decoder(1), target, clock)
    draft = Draft(shared, sequence=partial(SharedSequence, OWN))
    return engine_beside(target, draft, OWN, clock), shared


def fused(
    target: Decoder,
    draft: Decoder,
    shape: Branches,
    *,
    rows: int = 2,
    length: int = 120,
    sampled: bool = True,
) -> FusedModel:
    """Graphs for both models, and rounds of two context sizes for one row and for all."""
    capacity, wide = length + shape.nodes, max(2, shape.nodes)
    cache, beside = (
        empty_cache(model.config, rows, capacity, torch.float32) for model in (target, draft)
    )
    alone = Bucket(rows, wide, capacity, wide, wide, sampled, capacity)
    fed = Bucket(1, 32, capacity, 1, 1, False, capacity)
    prefill = DraftBucket(1, 32, capacity, 1, 1, False, capacity)
    rounds = {
        RoundBucket.of(shape, count, slots, capacity, sampled=sampled): RoundGraph(
            target, draft, cache, beside, shape
        )
        for count in sorted({1, rows})
        for slots in sorted({min(64, capacity), capacity})
    }
    graphs = {bucket: VerifyGraph(target, cache, bucket.levels) for bucket in (alone, fed)}
    drafting = CompiledModel({prefill: VerifyGraph(draft, beside, 1)}, beside)
    return FusedModel(graphs, cache, drafting, rounds)


def engine_of_rounds(model: FusedModel, length: int = 120) -> Engine:
    return Engine(
        model,
        sequence_length=length,
        max_tree_nodes=model.shape.nodes,
        vocabulary=pairs.VOCABULARY,
        graphs=GraphRounds(model),
    )
