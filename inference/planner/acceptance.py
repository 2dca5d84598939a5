"""How likely the target is to take the draft's child of each rank: a law with a prior, set right by
every verdict.

P(rank r | none before it) is a logistic function of what the draft's scores say about that child,
one law for greedy and one for sampled decoding. Each verdict moves the weights by a Newton step;
old evidence fades, and what it fades to is the prior. Knows nothing of models, trees and clocks;
the output never depends on it, only how much of a draft is accepted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.json_file import Json, read_json
from inference.whole_file import write_whole

VERSION = 2
FEATURES = ("one", "odds", "behind", "entropy", "first", "rank", "depth")
KINDS = ("sampled", "greedy")
"""Of decoding: each has a law of its own."""

RANKS = 16
"""Ranks whose average rates are kept; edges() takes rows of any width."""

MEMORY = 200
"""Verdicts after which evidence counts a third (1/e) of what it counted."""

CERTAINTY = 60
"""Verdicts that a record is worth at most, so that a user's file can still be changed by the
next session.
"""

SHIPPED = Path(__file__).parent / "data" / "acceptance.json"

_EXCLUDED = -1e8  # a score below: top-k or top-p leaves this token no chance
_UNSEEN = 1e-4  # least mass of the tokens below those that were ranked greedily
_FOLLOWING, _STEP = (
    1.5,
    2.0,
    # perturbed scores beyond the last: how many more like the next one, and its distance in
    # e**-score
)
_LEAST, _MOST = (
    -40.0,
    20.0,
)  # scores beyond are excluded tokens, or no scores; log-probabilities plus noise lie between
_SPAN = 8.0  # log odds and distances in scores beyond this are as good as certain
_DEEP = 8
_STEEPEST = 12.0  # of the log odds of a hazard
_FADING = 1 - 1 / MEMORY

FloatArray = NDArray[np.float64]


def features(
    scores: ArrayLike, depths: ArrayLike, greedy: bool
) -> FloatArray:  # [m, k], [m] -> [m, k, F]
    """What the scores of m nodes' children say about each of them, as FEATURES.

    odds: log odds against all later tokens, whose mass beyond the k ranked ones is known (greedy)
    or estimated.  behind: distance to the first child.  entropy: of the row, in nats.  first, rank:
    which child it is.  depth: of the node.
    """
    found = np.fmin(np.fmax(np.asarray(scores, dtype=np.float64), _LEAST), _MOST)
    mass = np.empty((found.shape[0], found.shape[1] + 1))
    np.exp(found, out=mass[:, :-1])
    if greedy:
        mass[:, -1] = np.maximum(1 - mass[:, :-1].sum(axis=1), _UNSEEN)
    # a Gumbel process: e**-score grows from one rank to the next by 1 / (probability of the tokens
    # that are left) on average
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


def hazards(table: FloatArray, weights: FloatArray) -> FloatArray:  # [..., F], [F] -> [...]
    """Probability that a child is taken when none before it is."""
    odds = np.minimum(np.maximum(table @ weights, -_STEEPEST), _STEEPEST)
    return np.asarray(1 / (1 + np.exp(-odds)))


def broken(sticks: FloatArray) -> FloatArray:  # [..., k] -> [..., k]
    """Probabilities of the ranks from their hazards; their sum is below 1."""
    left = np.multiply.accumulate(1 - sticks, axis=-1)
    sticks = sticks.copy()
    sticks[..., 1:] *= left[..., :-1]
    return sticks


class Law:
    """Weights of the features and how certain they are: a prior, and where evidence moved it.

    precision: inverse of the weights' covariance.  worth: verdicts that it stands for.  Raises
    InvalidRequest for what is no prior.
    """

    def __init__(self, weights: ArrayLike, precision: ArrayLike, worth: float) -> None:
        self._mean, self._certainty, self._worth = (
            np.array(weights, dtype=np.float64),
            np.array(precision, dtype=np.float64),
            float(worth),
        )
        width = len(FEATURES)
        if self._mean.shape != (width,) or self._certainty.shape != (width, width):
            raise InvalidRequest(
                f"a law has {width} weights and a square of precisions: got {self._mean.shape} and "
                f"{self._certainty.shape}"
            )
        sound = (
            np.isfinite(self._mean).all()
            and np.isfinite(self._certainty).all()
            and np.array_equal(self._certainty, self._certainty.T)
        )
        if (
            not sound
            or np.linalg.eigvalsh(self._certainty).min() <= 0
            or not 0 < self._worth < math.inf
        ):
            raise InvalidRequest(
                "a law needs finite weights, a symmetric and positive definite precision and a "
                "positive worth"
            )
        self.weights, self._moved = self._mean, np.zeros(width)  # [F]
        self._evidence, self._verdicts = (
            np.zeros((width, width)),
            0.0,
        )  # precision and verdicts beyond the prior's

    def learn(self, table: FloatArray, taken: NDArray[np.bool_], verdicts: int = 1) -> None:
        """So many verdicts at once: children that were come to, in order, and which of them were
        taken.  table: [n, F], taken: [n]
        """
        chance, fading = hazards(table, self.weights), _FADING**verdicts
        self._evidence = (
            fading * self._evidence + (table * (chance * (1 - chance))[:, None]).T @ table
        )
        self._verdicts = fading * self._verdicts + verdicts
        faded = (1 - fading) * (
            self._certainty @ self._moved
        )  # evidence that was forgotten no longer holds the weights off the prior's
        self._moved = self._moved - np.linalg.solve(
            self._certainty + self._evidence, faded + (chance - taken) @ table
        )
        self.weights = self._mean + self._moved

    def to_record(self) -> dict[str, Any]:
        """This law as a prior."""
        worth = self._worth + self._verdicts
        share = min(1.0, CERTAINTY / worth)
        precision = self._certainty + (self._evidence + self._evidence.T) / 2
        return {
            "weights": self.weights.tolist(),
            "precision": (share * precision).tolist(),
            "worth": share * worth,
        }


class RankRates:
    """How often each rank was taken, whatever the scores: hits of the times that it was come to,
    fading to the prior's.

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
        """One verdict: so many ranks were come to, and the last of them was taken, or none."""
        self._edges = {}
        self.tries += (1 - _FADING) * (self._prior[0] - self.tries)
        self.hits += (1 - _FADING) * (self._prior[1] - self.hits)
        self.tries[:come_to] += 1
        if taken is not None and taken < RANKS:
            self.hits[taken] += 1

    def edges(self, k: int) -> FloatArray:  # [k]
        """Average probability of the first k ranks, non-increasing; neighbours out of order
        share what they have.
        """
        if k not in self._edges:
            self._edges[k] = _descending(broken(self.hits[:k] / self.tries[:k]))
        return self._edges[k]

    def to_record(self) -> dict[str, Any]:
        """These rates as a prior."""
        share = min(1.0, CERTAINTY / float(self.tries[0]))
        return {"tries": (share * self.tries).tolist(), "hits": (share * self.hits).tolist()}


def _descending(rates: FloatArray) -> FloatArray:  # [k] -> [k]
    """The nearest non-increasing sequence of the same sum."""
    runs: list[tuple[float, int]] = []
    for rate in rates.tolist():
        runs.append((rate, 1))
        while len(runs) > 1 and runs[-2][0] < runs[-1][0]:
            (low, few), (high, many) = runs[-2:]
            runs[-2:] = [((low * few + high * many) / (few + many), few + many)]
    descending = np.repeat([rate for rate, _ in runs], [count for _, count in runs])
    descending.setflags(write=False)  # it is kept
    return descending


class AcceptanceModel:
    """What a session knows of how well draft and target agree; starts from a record, learns from
    verdicts.

    A row of scores is what Model.rank gives for one node: best first, log-probabilities at
    temperature 0, perturbed above it.
    """

    def __init__(self, laws: tuple[Law, Law], rates: RankRates) -> None:
        """laws: of sampled decoding, then of greedy decoding."""
        self._laws, self._rates = laws, rates

    def edges(
        self, scores: NDArray[np.float32], depths: ArrayLike, greedy: bool
    ) -> FloatArray:  # [m, k], [m] -> [m, k]
        """Probability that the target takes each child, given that its path reaches the node. A
        row's sum is below 1.

        depths: edges between the root and each of the m nodes. A child that top-k or top-p excludes
        has none.
        """
        return self.edges_of(features(scores, depths, greedy), scores, greedy)

    def edges_of(
        self, tables: FloatArray, scores: NDArray[np.float32], greedy: bool
    ) -> FloatArray:  # [m, k, F], [m, k] -> [m, k]
        """The same where the features are at hand."""
        chances = self._chances(tables, greedy)
        chances[scores < _EXCLUDED] = 0
        return chances

    def observe(
        self, scores: NDArray[np.float32], depth: int, greedy: bool, taken: int | None
    ) -> None:
        """The target's token at a node of this depth was its child of rank `taken`, or none of
        these k.  scores: [k]
        """
        tables = features(scores[None], np.array([depth]), greedy)
        self.observe_path(tables, greedy, [taken])

    def observe_path(
        self, tables: FloatArray, greedy: bool, taken: Sequence[int | None]
    ) -> None:  # [m, k, F], [m]
        """The same of the m nodes of a path, whose features are at hand."""
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
        """The same on average over all nodes, for plans that are made without knowing the scores:
        non-increasing, sum below 1.

        Raises ValueError unless k is 1 to RANKS.
        """
        if not 1 <= k <= RANKS:
            raise ValueError(f"rates of 1 to {RANKS} ranks are known: got k = {k}")
        return self._rates.edges(k)

    def _chances(self, table: FloatArray, greedy: bool) -> FloatArray:  # [..., k, F] -> [..., k]
        return broken(hazards(table, self._laws[greedy].weights))

    def to_record(self) -> dict[str, Any]:
        """What was learnt, as a prior for other sessions: plain values for JSON."""
        laws = {kind: law.to_record() for kind, law in zip(KINDS, self._laws, strict=True)}
        return {
            "version": VERSION,
            "features": list(FEATURES),
            "laws": laws,
            "rates": self._rates.to_record(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AcceptanceModel:
        """The model that to_record described; other fields are ignored. Raises InvalidRequest
        for what it cannot use.
        """
        return cls.read(Json(dict(record), "this acceptance record", InvalidRequest))

    @classmethod
    def read(cls, record: Json) -> AcceptanceModel:
        """The same from a file's contents."""
        version, features = record.field("version"), record.field("features")
        if version.value != VERSION or features.value != list(FEATURES):
            version.refuse(f"an acceptance record of version {VERSION}")
        laws, rates = record.field("laws"), record.field("rates")
        sampled, greedy = (_law(laws.field(kind)) for kind in KINDS)
        known = rates.make(RankRates, _numbers(rates.field("tries")), _numbers(rates.field("hits")))
        return cls((sampled, greedy), known)


def read_acceptance(path: Path = SHIPPED) -> AcceptanceModel:
    """The model of a file, else the shipped one. Raises InvalidRequest for a file of no use."""
    return AcceptanceModel.read(read_json(path, InvalidRequest))


def _law(raw: Json) -> Law:
    precision = raw.field("precision").each(_numbers)
    if any(len(row) != len(precision) for row in precision):
        raw.field("precision").refuse("a square")
    return raw.make(Law, _numbers(raw.field("weights")), precision, raw.field("worth").number())


def _numbers(raw: Json) -> tuple[float, ...]:
    return raw.each(Json.number)


def write_acceptance(model: AcceptanceModel, path: Path) -> None:
    """Keep what was learnt in a file; readers never see half of it."""
    write_whole(path, json.dumps(model.to_record()) + "\n")
