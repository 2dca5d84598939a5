"""How likely the target is to take the draft's child of each rank, learnt from every verdict.

P(rank r | none before it) is a logistic function of features of the draft's scores. Greedy and
sampled decoding have a law each. A verdict moves the weights by a Newton step. Old evidence fades
towards a prior. Output never depends on it, only how much is accepted. Knows nothing of models,
trees and clocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.json_file import Json, read_json
from inference.planner.copying import Copying
from inference.planner.guessing import Guessing
from inference.planner.law import (
    CERTAINTY,
    FADING,
    FloatArray,
    Law,
    broken,
    hazards,
    read_law,
    read_numbers,
)
from inference.whole_file import write_whole

VERSION = 4
FEATURES = ("one", "odds", "behind", "entropy", "first", "rank", "depth")
KINDS = ("sampled", "greedy")
"""Kinds of decoding. Each has a law of its own."""

RANKS = 16
"""Ranks whose average rates are kept; edges() takes rows of any width."""

SHIPPED = Path(__file__).parents[1] / "data" / "acceptance.json"

EXCLUDED = -1e8  # a score below: top-k or top-p leaves this token no chance
_UNSEEN = 1e-4  # least mass of the tokens below those that were ranked greedily
_FOLLOWING = 1.5  # how many more perturbed scores like the next one lie beyond the last
_STEP = 2.0  # distance of that next one, in e**-score
_LEAST, _MOST = -40.0, 20.0  # log-probabilities plus noise lie between; excluded tokens do not
_SPAN = 8.0  # log odds and distances in scores beyond this are as good as certain
_DEEP = 8


def features(
    scores: ArrayLike, depths: ArrayLike, greedy: bool
) -> FloatArray:  # [m, k], [m] -> [m, k, F]
    """Return the FEATURES of each child of m nodes.

    odds: log odds against all later tokens; their mass beyond rank k is known (greedy) or estimated
    behind: distance of the child's score to the first child's
    entropy: of the row, in nats
    first, rank: whether it is the first child, and log(1 + rank)
    depth: of the node
    """
    found = np.fmin(np.fmax(np.asarray(scores, dtype=np.float64), _LEAST), _MOST)
    mass = np.empty((found.shape[0], found.shape[1] + 1))
    np.exp(found, out=mass[:, :-1])
    if greedy:
        mass[:, -1] = np.maximum(1 - mass[:, :-1].sum(axis=1), _UNSEEN)
    # Perturbed scores are a Gumbel process: from one rank to the next, e**-score grows on average
    # by 1 / (probability of the remaining tokens).
    else:
        mass[:, -1] = _FOLLOWING / (np.exp(-found[:, -1]) + _STEP)
    left = np.add.accumulate(mass[:, ::-1], axis=1)[:, ::-1]
    share = mass / left[:, :1]
    table = np.empty((*found.shape, len(FEATURES)))
    table[..., 0] = 1
    table[..., 1] = np.minimum(np.maximum(np.log(mass[:, :-1] / left[:, 1:]), -_SPAN), _SPAN)
    table[..., 2] = np.minimum(found[:, :1] - found, _SPAN)
    table[..., 3] = -(share * np.log(share)).sum(axis=1)[:, None]
    table[..., 4] = 0
    table[:, 0, 4] = 1
    table[..., 5] = np.log1p(np.arange(found.shape[1]))
    table[..., 6] = np.minimum(depths, _DEEP)[:, None] / _DEEP
    return table


class RankRates:
    """How often each rank was taken, whatever its score: hits / tries, fading to the prior's.

    Raises InvalidRequest unless there are RANKS of each, with 0 < hits < tries.
    """

    def __init__(self, tries: ArrayLike, hits: ArrayLike) -> None:
        self.tries, self.hits = np.array(tries, dtype=np.float64), np.array(hits, dtype=np.float64)
        if self.tries.shape != (RANKS,) or self.hits.shape != (RANKS,):
            raise InvalidRequest(
                f"rates have {RANKS} ranks: got {self.tries.shape} tries and {self.hits.shape} hits"
            )
        if not (
            np.isfinite(self.tries).all()
            and (self.hits > 0).all()
            and (self.hits < self.tries).all()
        ):
            raise InvalidRequest("each rank's hits must lie between 0 and its tries")
        self._prior = self.tries.copy(), self.hits.copy()
        self._edges: dict[int, FloatArray] = {}  # by k, until the next verdict

    def learn(self, come_to: int, taken: int | None) -> None:
        """Learn one verdict: `come_to` ranks were looked at, and the last was taken, or none."""
        self._edges = {}
        self.tries += (1 - FADING) * (self._prior[0] - self.tries)
        self.hits += (1 - FADING) * (self._prior[1] - self.hits)
        self.tries[:come_to] += 1
        if taken is not None and taken < RANKS:
            self.hits[taken] += 1

    def edges(self, k: int) -> FloatArray:  # [k]
        """Average probability of the first k ranks; neighbours out of order are averaged."""
        if k not in self._edges:
            self._edges[k] = _descending(broken(self.hits[:k] / self.tries[:k]))
        return self._edges[k]

    def to_record(self) -> dict[str, Any]:
        """Return these rates as a prior."""
        share = min(1.0, CERTAINTY / float(self.tries[0]))
        return {"tries": (share * self.tries).tolist(), "hits": (share * self.hits).tolist()}


def _descending(rates: FloatArray) -> FloatArray:  # [k] -> [k]
    """Return the nearest non-increasing sequence with the same sum."""
    runs: list[tuple[float, int]] = []
    for rate in rates.tolist():
        runs.append((rate, 1))
        while len(runs) > 1 and runs[-2][0] < runs[-1][0]:
            (low, few), (high, many) = runs[-2:]
            runs[-2:] = [((low * few + high * many) / (few + many), few + many)]
    descending = np.repeat([rate for rate, _ in runs], [count for _, count in runs])
    descending.setflags(write=False)  # callers share the cached array
    return descending


class AcceptanceModel:
    """How well draft and target agree: starts from a record, and learns from verdicts.

    A row of scores is what Model.rank gives for one node, best first: log-probabilities at
    temperature 0, perturbed scores above it.
    """

    def __init__(
        self, laws: tuple[Law, Law], rates: RankRates, copying: Copying, guessing: Guessing
    ) -> None:
        """laws: the law of sampled decoding, then the law of greedy decoding

        copying: what copied text is worth
        guessing: what a block draft's masks are worth
        """
        self._laws, self._rates, self.copying, self.guessing = laws, rates, copying, guessing

    def edges_of(
        self, tables: FloatArray, scores: NDArray[np.float32], greedy: bool
    ) -> FloatArray:  # [m, k, F], [m, k] -> [m, k]
        """Probability that the target takes each child, given that it reaches the node.

        tables: features() of the children

        A row's sum is below 1. A child that top-k or top-p excludes has probability 0.
        """
        chances = broken(hazards(tables, self._laws[greedy].weights))
        chances[scores < EXCLUDED] = 0
        return chances

    def observe_path(
        self, tables: FloatArray, greedy: bool, taken: Sequence[int | None]
    ) -> None:  # [m, k, F], [m]
        """Learn from a path of m nodes: the rank that the target took at each, or None."""
        k = tables.shape[1]
        hits = np.array([-1 if rank is None else rank for rank in taken])
        come_to = np.where(hits < 0, k, hits + 1)
        inside = np.arange(k) < come_to[:, None]
        self._laws[greedy].learn(
            tables[inside], (np.arange(k) == hits[:, None])[inside], len(taken)
        )
        for count, rank in zip(come_to.tolist(), taken, strict=True):
            self._rates.learn(count, rank)

    def mean_edges(self, k: int) -> FloatArray:  # [k]
        """Probabilities of the ranks, averaged over nodes: for plans made without scores.

        Non-increasing, with a sum below 1. Raises ValueError unless k is 1 to RANKS.
        """
        if not 1 <= k <= RANKS:
            raise ValueError(f"rates of 1 to {RANKS} ranks are known: got k = {k}")
        return self._rates.edges(k)

    def to_record(self) -> dict[str, Any]:
        """Return what was learnt, as a prior for other sessions: plain values for JSON."""
        laws = {kind: law.to_record() for kind, law in zip(KINDS, self._laws, strict=True)}
        return {
            "version": VERSION,
            "features": list(FEATURES),
            "laws": laws,
            "rates": self._rates.to_record(),
            "copying": self.copying.to_record(),
            "guessing": self.guessing.to_record(),
        }

    @classmethod
    def read(cls, record: Json) -> AcceptanceModel:
        """Read what to_record() described; other fields are ignored. Raises InvalidRequest."""
        version, features = record.field("version"), record.field("features")
        if version.value != VERSION or features.value != list(FEATURES):
            version.refuse(f"an acceptance record of version {VERSION}")
        laws, rates = record.field("laws"), record.field("rates")
        sampled, greedy = (read_law(laws.field(kind), len(FEATURES)) for kind in KINDS)
        known = rates.make(
            RankRates, read_numbers(rates.field("tries")), read_numbers(rates.field("hits"))
        )
        copying = Copying.read(record.field("copying"))
        return cls((sampled, greedy), known, copying, Guessing.read(record.field("guessing")))


def read_acceptance(path: Path = SHIPPED) -> AcceptanceModel:
    """Read the model from a file, by default the shipped one. Raises InvalidRequest."""
    return AcceptanceModel.read(read_json(path, InvalidRequest))


def write_acceptance(model: AcceptanceModel, path: Path) -> None:
    """Write what was learnt to a file. Readers never see a part of it."""
    write_whole(path, json.dumps(model.to_record()) + "\n")
