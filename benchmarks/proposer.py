"""Thread-CPU time of a proposer outside its model, by part.

Target and draft are hashes of a token and its position, so that everything but the model is real:
candidate tree, messages, acceptance learned. Medians, since other processes share the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from inference.accept import accept_match
from inference.backends import Ranked, Segment
from inference.candidates import CandidateTree
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.engine.snapshot import best_of
from inference.planner.acceptance_file import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.proposer import Nodes, Notice
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from inference.tree import IntArray

VOCABULARY, TOKENS, CALL, FORWARD, CALLS_A_FORWARD = 4096, 500, 0.01, 0.03, 3

T = TypeVar("T")


class HashModel:
    """A draft that names the target's token first in 7 of 10 places, second in 1.5."""

    rows, capacity, max_nodes, copies_rows = 1, 2048, 64, False

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return [ranked.ids[:, 0] for ranked in self.rank(segments, 1)]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return [self._rank(segment, k) for segment in segments]

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError("one row")

    def _rank(self, segment: Segment, k: int) -> Ranked:
        tokens, positions = segment.tokens[segment.pick], segment.positions[segment.pick]
        right, chance = hashed(tokens, positions), hashed(tokens, positions + 7919) % 100
        ids = (right[:, None] + np.arange(1, k + 1)) % VOCABULARY
        scores = np.repeat(-2.0 - 0.5 * np.arange(-1.0, k - 1)[None], len(tokens), axis=0)
        scores[:, 0] = np.where(chance < 70, -0.5, -1.0)
        for rank, hit in ((0, chance < 70), (1, (chance >= 70) & (chance < 85))):
            if rank < k:
                ids[hit, rank] = right[hit]
        return Ranked(ids.astype(np.int32), scores.astype(np.float32))


def hashed(tokens: IntArray, positions: IntArray) -> IntArray:  # [n], [n] -> [n]
    """What the target says after these tokens at these positions."""
    mixed = tokens.astype(np.int64) * 2654435761 + positions.astype(np.int64) * 40503
    return np.asarray((mixed ^ (mixed >> 13)) % VOCABULARY, dtype=np.int32)


class Stopwatch:
    """Seconds of each part, call by call."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}

    def of(self, part: str, work: Callable[[], T]) -> T:
        began = time.thread_time()
        result = work()
        self.parts.setdefault(part, []).append(time.thread_time() - began)
        return result


def measure() -> tuple[Stopwatch, GrowingProposer]:
    """One text."""
    known = Knowledge(DraftTimes({1: CALL}), LatencyModel({(1, 1): FORWARD}), read_acceptance())
    model, watch, text = HashModel(), Stopwatch(), [1, 2, 3]
    proposer = Draft(model).proposer(0, known, Prices())
    tree, numbers, now = CandidateTree(text), iter(range(10**9)), 0.0
    tree.join(0)
    proposer.open(text, SamplingParams(), TOKENS + 500)
    while len(text) < TOKENS:
        made = walk(tree)
        for _ in range(CALLS_A_FORWARD):
            call(proposer, model, watch, now)
            now += CALL
            nodes = watch.of("flush", lambda: proposer.flush(now, numbers.__next__))  # noqa: B023
            if nodes is not None:
                append(tree, nodes)
        notice = Notice(now, FORWARD, 0, tree.live, 64)
        position = len(text) - len(made)
        watch.of("hear", lambda: proposer.hear(position, made, now, notice))  # noqa: B023
    return watch, proposer


def call(proposer: GrowingProposer, model: HashModel, watch: Stopwatch, now: float) -> None:
    if watch.of("choose", lambda: proposer.choose(now)):
        segment = watch.of("segment", proposer.segment)
        ranked = model.rank([segment], TUNING.width)[0]
        watch.of("take", lambda: proposer.take(ranked, CALL))


def append(tree: CandidateTree, nodes: Nodes) -> None:
    tree.append(0, nodes, lambda proposer, depth, claimed: claimed)


def walk(tree: CandidateTree) -> list[int]:
    """One forward that has room for everything."""
    everything = tree.live + 1
    nodes = best_of([tree], [everything], [everything]).snapshots(everything)[0].tree
    verdict = accept_match(nodes, hashed(nodes.tokens, tree.position + nodes.depths))
    made = [*nodes.tokens[list(verdict.path)].tolist(), verdict.next_token]
    tree.advance(made)
    return made


def outside_the_model(watch: Stopwatch, proposer: GrowingProposer) -> float:
    """Seconds a call."""
    total = sum(median(times) * len(times) for times in watch.parts.values())
    return total / proposer.usage.calls
