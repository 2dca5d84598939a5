"""Probabilities that the target accepts a child, learned from verdicts for each source of children.

A law is a logistic model of a child's features for P(child | none before it). There is a law for a
draft's ranks in each kind of decoding, one for copied text, and one for children that both model
and copies propose. A verdict moves a law's weights by a Newton step; old evidence fades towards a
prior. Laws affect the number of accepted tokens, never the output. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.files.json_file import Json, read_json
from inference.files.writing import write_whole
from inference.planner.child_features import (
    COPY_FEATURES,
    EXCLUDED,
    JOINT_FEATURES,
    RANK_FEATURES,
    SPAN,
    FloatArray,
)
from inference.times import Times

MEMORY = 200
"""Verdicts after which evidence has faded to 1/e of its original weight."""

FADING = 1 - 1 / MEMORY
"""Weight that evidence keeps after one more verdict."""

CERTAINTY = 60
"""Maximum verdicts that a saved law counts as, so that the next session can still change it."""

STEEPEST = 12.0
"""Maximum absolute log odds of a child."""

FeatureRows: TypeAlias = Sequence[Sequence[float]]
"""Features of one node's children, [k, F]: lists, because an array is slow for so few numbers."""


class Law:
    """A logistic model: weights of the features and their precision, as a prior and as learned.

    precision: inverse of the weights' covariance
    worth: number of verdicts that the prior counts as
    Raises InvalidRequest for an invalid prior.
    """

    def __init__(self, weights: ArrayLike, precision: ArrayLike, worth: float) -> None:
        self._mean = np.array(weights, dtype=np.float64)
        self._certainty, self._worth = np.array(precision, dtype=np.float64), float(worth)
        width = len(self._mean)
        if self._mean.shape != (width,) or self._certainty.shape != (width, width):
            raise InvalidRequest(
                f"a law has a row of weights and a square of precisions as wide: got "
                f"{self._mean.shape} and {self._certainty.shape}"
            )
        finite = np.isfinite(self._mean).all() and np.isfinite(self._certainty).all()
        symmetric = finite and np.array_equal(self._certainty, self._certainty.T)
        definite = symmetric and np.linalg.eigvalsh(self._certainty).min() > 0
        if not definite or not 0 < self._worth < math.inf:
            raise InvalidRequest(
                "a law needs finite weights, a symmetric and positive definite precision and a "
                "positive worth"
            )
        self.weights, self._moved = self._mean, np.zeros(width)  # [F]
        self._evidence, self._verdicts = np.zeros((width, width)), 0.0  # in addition to the prior

    def learn(self, table: FloatArray, accepted: NDArray[np.bool_], verdicts: int = 1) -> None:
        """Learn from verdicts: features of the children that the target considered in order [n, F],
        and whether it accepted each [n].
        """
        chance, fading = hazards(table, self.weights), FADING**verdicts
        self._evidence = (
            fading * self._evidence + (table * (chance * (1 - chance))[:, None]).T @ table
        )
        self._verdicts = fading * self._verdicts + verdicts
        # forgotten evidence no longer keeps the weights away from the prior
        faded = (1 - fading) * (self._certainty @ self._moved)
        self._moved = self._moved - np.linalg.solve(
            self._certainty + self._evidence, faded + (chance - accepted) @ table
        )
        self.weights = self._mean + self._moved

    def observe(self, rows: FeatureRows | FloatArray, index: int | None) -> None:  # [k, F]
        """Learn which of a node's children the target accepted, by its index; None for no child."""
        reached = len(rows) if index is None else index + 1
        self.learn(np.array(rows[:reached]), np.arange(reached) == index)

    def chances(self, rows: FeatureRows) -> list[float]:  # [k, F] -> [k]
        """Return the acceptance probability of each child of a node. Their sum is below 1."""
        weights, remaining, chances = self.weights.tolist(), 1.0, list[float]()
        for row in rows:
            odds = sum(weight * value for weight, value in zip(weights, row, strict=True))
            chance = remaining / (1 + math.exp(-min(max(odds, -SPAN), SPAN)))
            chances.append(chance)
            remaining -= chance
        return chances

    def to_record(self) -> dict[str, Any]:
        """Return this law as a prior."""
        worth = self._worth + self._verdicts
        share = min(1.0, CERTAINTY / worth)
        precision = self._certainty + (self._evidence + self._evidence.T) / 2
        return {
            "weights": self.weights.tolist(),
            "precision": (share * precision).tolist(),
            "worth": share * worth,
        }


def hazards(table: FloatArray, weights: FloatArray) -> FloatArray:  # [..., F], [F] -> [...]
    """Return the probability that a child is accepted, given that no earlier child is."""
    odds = np.minimum(np.maximum(table @ weights, -STEEPEST), STEEPEST)
    return np.asarray(1 / (1 + np.exp(-odds)))


def broken(sticks: FloatArray) -> FloatArray:  # [..., k] -> [..., k]
    """Convert hazards to the ranks' probabilities (stick breaking). Their sum is below 1."""
    remaining = np.multiply.accumulate(1 - sticks, axis=-1)
    sticks = sticks.copy()
    sticks[..., 1:] *= remaining[..., :-1]
    return sticks


RANKS = 16
"""Number of ranks with an average rate; edges_of() takes rows of any width."""


class HitRates:
    """How often the target accepted each rank: hits / tries, fading towards the prior.

    Raises InvalidRequest unless tries and hits have RANKS values each, with 0 < hits < tries.
    """

    def __init__(self, tries: ArrayLike, hits: ArrayLike) -> None:
        self.tries, self.hits = np.array(tries, dtype=np.float64), np.array(hits, dtype=np.float64)
        if self.tries.shape != (RANKS,) or self.hits.shape != (RANKS,):
            raise InvalidRequest(
                f"there are {RANKS} rates: got {self.tries.shape} tries and {self.hits.shape} hits"
            )
        between = (self.hits > 0) & (self.hits < self.tries) & np.isfinite(self.tries)
        if not between.all():
            raise InvalidRequest("each rate's hits must lie between 0 and its tries")
        self._prior = self.tries.copy(), self.hits.copy()

    def learn(self, count: int, rank: int | None) -> None:
        """Learn that the target considered the first `count` ranks and accepted `rank`, or none."""
        for counts, prior in zip((self.tries, self.hits), self._prior, strict=True):
            counts += (1 - FADING) * (prior - counts)
        self.tries[:count] += 1
        if rank is not None and rank < RANKS:
            self.hits[rank] += 1

    def to_record(self) -> dict[str, Any]:
        """Return these rates as a prior."""
        share = min(1.0, CERTAINTY / self.tries.item(0))
        return {"tries": (share * self.tries).tolist(), "hits": (share * self.hits).tolist()}


VERSION = 4
KINDS = ("sampled", "greedy")
"""Kinds of decoding."""

_SUREST = 0.999  # maximum sum of the probabilities of children that two sources propose


class Laws(NamedTuple):
    """The laws of a pair of models. Ranks have two: for sampled, then for greedy decoding."""

    ranks: tuple[Law, Law]
    copies: Law
    joint: Law


class AcceptanceModel:
    """How well draft and target agree: starts from a record, and learns from verdicts.

    A row of scores is the result of Model.rank for a node, best first: log-probabilities at
    temperature 0, and perturbed scores above 0.
    """

    def __init__(self, laws: Laws, rates: HitRates) -> None:
        self.laws, self.rates = laws, rates
        self._edges: dict[int, FloatArray] = {}  # mean_edges() by k, until the next verdict

    # --- ranks of a draft

    def edges_of(
        self, tables: FloatArray, scores: NDArray[np.float32], greedy: bool
    ) -> FloatArray:  # [m, k, F], [m, k] -> [m, k]
        """Return the probability that the target accepts each child if it reaches the node.

        tables: rank_features() of the children

        A row's sum is below 1. A child that top-k or top-p excludes has probability 0.
        """
        chances = broken(hazards(tables, self.laws.ranks[greedy].weights))
        chances[scores < EXCLUDED] = 0
        return chances

    def observe_path(
        self, tables: FloatArray, greedy: bool, ranks: Sequence[int | None]
    ) -> None:  # [m, k, F], [m]
        """Learn from a path of m nodes: the rank that the target accepted at each, or None."""
        k = tables.shape[1]
        hits = np.array([-1 if rank is None else rank for rank in ranks])
        considered = np.where(hits < 0, k, hits + 1)
        inside = np.arange(k) < considered[:, None]
        self.laws.ranks[greedy].learn(
            tables[inside], (np.arange(k) == hits[:, None])[inside], len(ranks)
        )
        for count, rank in zip(considered.tolist(), ranks, strict=True):
            self.rates.learn(count, rank)
        self._edges = {}

    def mean_edges(self, k: int) -> FloatArray:  # [k]
        """Return the ranks' probabilities averaged over nodes, for plans made without scores.

        They are non-increasing, with a sum below 1. Raises ValueError unless k is 1 to RANKS.
        """
        if not 1 <= k <= RANKS:
            raise ValueError(f"there are rates of 1 to {RANKS} ranks: got k = {k}")
        if k not in self._edges:
            rates = self.rates
            self._edges[k] = _descending(broken(rates.hits[:k] / rates.tries[:k]))
        return self._edges[k]

    # --- model and copied text

    def together(self, table: FloatArray) -> FloatArray:  # [k, J] -> [k]
        """Return the probability of each child of two sources, from its joint_features()."""
        chances = hazards(table, self.laws.joint.weights)
        return np.asarray(chances * min(_SUREST / float(chances.sum()), 1.0))

    def observe_together(self, table: FloatArray, index: int | None) -> None:  # [k, J]
        """Learn which child the target accepted at a node with children of two sources."""
        self.laws.joint.learn(table, np.arange(len(table)) == index)

    def to_record(self) -> dict[str, Any]:
        """Return the learned state as a prior for other sessions: plain values for JSON."""
        laws = self.laws
        return {
            "version": VERSION,
            "features": list(RANK_FEATURES),
            "laws": {kind: law.to_record() for kind, law in zip(KINDS, laws.ranks, strict=True)},
            "rates": self.rates.to_record(),
            "copying": {"copies": laws.copies.to_record(), "joint": laws.joint.to_record()},
        }


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


@dataclass
class PairStats:
    """Times and acceptance of one pair of models.

    round_trip: seconds of a message to the target and back; 0 for a target on the draft's device
    """

    draft: Times  # for calls of one row
    target: Times
    acceptance: AcceptanceModel
    round_trip: float = 0.0


SHIPPED = Path(__file__).parents[1] / "data" / "acceptance.json"


def read_acceptance(path: Path = SHIPPED) -> AcceptanceModel:
    """Read an acceptance model from a file, by default the shipped one. Raises InvalidRequest."""
    return read_model(read_json(path, InvalidRequest))


def write_acceptance(model: AcceptanceModel, path: Path) -> None:
    """Write an acceptance model to a file, atomically."""
    write_whole(path, json.dumps(model.to_record()) + "\n")


def read_model(record: Json) -> AcceptanceModel:
    """Read a model in the format of AcceptanceModel.to_record(), ignoring other fields.

    Raises InvalidRequest.
    """
    version, features = record.field("version"), record.field("features")
    if version.value != VERSION or features.value != list(RANK_FEATURES):
        version.refuse(f"an acceptance record of version {VERSION}")
    copying = record.field("copying")
    ranks = record.field("laws")
    sampled, greedy = (read_law(ranks.field(kind), len(RANK_FEATURES)) for kind in KINDS)
    laws = Laws(
        (sampled, greedy),
        read_law(copying.field("copies"), len(COPY_FEATURES)),
        read_law(copying.field("joint"), len(JOINT_FEATURES)),
    )
    rates = record.field("rates")
    tries, hits = (read_numbers(rates.field(name)) for name in ("tries", "hits"))
    return AcceptanceModel(laws, rates.make(HitRates, tries, hits))


def read_law(raw: Json, width: int) -> Law:
    """Read a law of `width` features in the format of Law.to_record(). Raises InvalidRequest."""
    weights, precision = raw.field("weights"), raw.field("precision").map(read_numbers)
    if len(read_numbers(weights)) != width:
        weights.refuse(f"{width} numbers")
    if any(len(row) != width for row in precision) or len(precision) != width:
        raw.field("precision").refuse(f"a square of {width}")
    worth = raw.field("worth").number()
    return raw.make(Law, read_numbers(weights), precision, worth)


def read_numbers(raw: Json) -> tuple[float, ...]:
    """Read a list of numbers. Raises `raw.refusal` for anything else."""
    return raw.map(Json.number)
