"""Chances that the target accepts a child, learned from verdicts by the child's source.

P(child | none before it) is a logistic model of the child's features, a law. Ranks of a draft
and tokens of a mask have a law for each kind of decoding. Copied text has one, and so have children
that both model and copies propose. A verdict moves a law's weights by a Newton step. Old evidence
fades towards a prior. The output never depends on it, only the number of accepted tokens. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import InvalidRequest
from inference.planner.child_features import (
    EXCLUDED,
    RANK_FEATURES,
    FloatArray,
)
from inference.times import Times

MEMORY = 200
"""Verdicts after which evidence has faded to 1/e of its weight."""

FADING = 1 - 1 / MEMORY
"""Weight that evidence keeps after one more verdict."""

CERTAINTY = 60
"""Maximum verdicts that a saved law counts for, so that the next session can still change it."""

STEEPEST = 12.0
"""Largest absolute log odds of a child."""

FeatureRows: TypeAlias = Sequence[Sequence[float]]
"""Features of one node's children [k, F], as plain numbers: too short for an array."""


class Law:
    """A logistic model: weights of the features and their precision, as a prior and as learned.

    precision: inverse of the weights' covariance
    worth: number of verdicts that the prior counts for
    steepest: largest absolute log odds of chances()
    Raises InvalidRequest for an invalid prior.
    """

    def __init__(
        self, weights: ArrayLike, precision: ArrayLike, worth: float, steepest: float
    ) -> None:
        self._steepest = steepest
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
        self._evidence, self._verdicts = np.zeros((width, width)), 0.0  # beyond the prior's

    def learn(self, table: FloatArray, taken: NDArray[np.bool_], verdicts: int = 1) -> None:
        """Learn from verdicts: children that the target considered [n, F], in order, and whether it
        accepted each [n].
        """
        chance, fading = hazards(table, self.weights), FADING**verdicts
        self._evidence = (
            fading * self._evidence + (table * (chance * (1 - chance))[:, None]).T @ table
        )
        self._verdicts = fading * self._verdicts + verdicts
        # forgotten evidence no longer keeps the weights from the prior's
        faded = (1 - fading) * (self._certainty @ self._moved)
        self._moved = self._moved - np.linalg.solve(
            self._certainty + self._evidence, faded + (chance - taken) @ table
        )
        self.weights = self._mean + self._moved

    def observe(self, rows: FeatureRows | FloatArray, taken: int | None) -> None:  # [k, F]
        """Learn which of a node's children the target accepted; taken: its index, or None."""
        reached = len(rows) if taken is None else taken + 1
        self.learn(np.array(rows[:reached]), np.arange(reached) == taken)

    def chances(self, rows: FeatureRows) -> list[float]:  # [k, F] -> [k]
        """Return the probability of each of a node's children. Their sum is below 1."""
        weights, steepest = self.weights.tolist(), self._steepest
        left, chances = 1.0, list[float]()
        for row in rows:
            odds = sum(weight * value for weight, value in zip(weights, row, strict=True))
            taken = left / (1 + math.exp(-min(max(odds, -steepest), steepest)))
            chances.append(taken)
            left -= taken
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
    """Return the probability that a child is accepted, given that none before it is."""
    odds = np.minimum(np.maximum(table @ weights, -STEEPEST), STEEPEST)
    return np.asarray(1 / (1 + np.exp(-odds)))


def broken(sticks: FloatArray) -> FloatArray:  # [..., k] -> [..., k]
    """Return probabilities of the ranks from their hazards (stick breaking). Their sum is below
    1.
    """
    left = np.multiply.accumulate(1 - sticks, axis=-1)
    sticks = sticks.copy()
    sticks[..., 1:] *= left[..., :-1]
    return sticks


class HitRates:
    """Decaying hit rates: hits / tries, fading to the prior's.

    Raises InvalidRequest unless there are so many of each, with 0 < hits < tries.
    """

    def __init__(self, tries: ArrayLike, hits: ArrayLike, count: int) -> None:
        self.tries, self.hits = np.array(tries, dtype=np.float64), np.array(hits, dtype=np.float64)
        if self.tries.shape != (count,) or self.hits.shape != (count,):
            raise InvalidRequest(
                f"there are {count} rates: got {self.tries.shape} tries and {self.hits.shape} hits"
            )
        between = (self.hits > 0) & (self.hits < self.tries) & np.isfinite(self.tries)
        if not between.all():
            raise InvalidRequest("each rate's hits must lie between 0 and its tries")
        self._prior = self.tries.copy(), self.hits.copy()

    def learn(self, tried: slice, hit: int | None, faded: slice = slice(None)) -> None:
        """Learn a verdict.

        tried: rates that gain a try
        hit: the one that gains a hit; None, or beyond the last, for none
        faded: rates whose older evidence counts for less now
        """
        for counts, prior in zip((self.tries, self.hits), self._prior, strict=True):
            counts[faded] += (1 - FADING) * (prior[faded] - counts[faded])
        self.tries[tried] += 1
        if hit is not None and hit < len(self.hits):
            self.hits[hit] += 1

    def to_record(self, worth: ArrayLike) -> dict[str, Any]:
        """Return these rates as a prior. worth: part of the evidence that it keeps"""
        shares = np.minimum(1.0, worth)
        return {"tries": (shares * self.tries).tolist(), "hits": (shares * self.hits).tolist()}


VERSION = 4
KINDS = ("sampled", "greedy")
"""Kinds of decoding."""

RANKS = 16
"""Ranks with an average rate; edges_of() takes rows of any width."""

OFFSETS = 15
"""Masks after a node with a rate of their own. Later masks use the last rate."""

LIKELY = 0.15
"""Minimum chance of a child that counts for a mask's rate. Less likely ones are spread over more
nodes than a forward pass has.
"""

_RATES_WORTH = 20.0  # maximum verdicts that a saved rate of masks counts for
_SUREST = 0.999  # maximum sum of the chances of children that two sources propose


class Laws(NamedTuple):
    """The laws of one pair of models. Two: of sampled decoding, then of greedy decoding."""

    ranks: tuple[Law, Law]
    masks: tuple[Law, Law]
    copies: Law
    joint: Law


class AcceptanceModel:
    """The agreement of draft and target: starts from a record, and learns from verdicts.

    A row of scores is the result of Model.rank for a node, best first: log-probabilities at
    temperature 0, perturbed scores above it.

    rates: how often each rank was accepted
    mask_rates: by a mask's offset, how often the text reached a node with its children, and how
        often the target accepted a LIKELY one of these
    """

    def __init__(self, laws: Laws, rates: HitRates, mask_rates: HitRates) -> None:
        self.laws, self.rates, self.mask_rates = laws, rates, mask_rates
        self._edges: dict[int, FloatArray] = {}  # mean_edges() by k, until the next verdict

    # --- ranks of a draft

    def edges_of(
        self, tables: FloatArray, scores: NDArray[np.float32], greedy: bool
    ) -> FloatArray:  # [m, k, F], [m, k] -> [m, k]
        """Probability that the target accepts each child, given that it reaches the node.

        tables: rank_features() of the children

        A row's sum is below 1. A child that top-k or top-p excludes has probability 0.
        """
        chances = broken(hazards(tables, self.laws.ranks[greedy].weights))
        chances[scores < EXCLUDED] = 0
        return chances

    def observe_path(
        self, tables: FloatArray, greedy: bool, taken: Sequence[int | None]
    ) -> None:  # [m, k, F], [m]
        """Learn from a path of m nodes: the rank that the target accepted at each, or None."""
        k = tables.shape[1]
        hits = np.array([-1 if rank is None else rank for rank in taken])
        considered = np.where(hits < 0, k, hits + 1)
        inside = np.arange(k) < considered[:, None]
        self.laws.ranks[greedy].learn(
            tables[inside], (np.arange(k) == hits[:, None])[inside], len(taken)
        )
        for count, rank in zip(considered.tolist(), taken, strict=True):
            self.rates.learn(slice(count), rank)
        self._edges = {}

    def mean_edges(self, k: int) -> FloatArray:  # [k]
        """Return probabilities of the ranks, averaged over nodes: for plans made without scores.

        Non-increasing, with a sum below 1. Raises ValueError unless k is 1 to RANKS.
        """
        if not 1 <= k <= RANKS:
            raise ValueError(f"there are rates of 1 to {RANKS} ranks: got k = {k}")
        if k not in self._edges:
            rates = self.rates
            self._edges[k] = _descending(broken(rates.hits[:k] / rates.tries[:k]))
        return self._edges[k]

    # --- model and copied text

    def together(self, table: FloatArray) -> FloatArray:  # [k, J] -> [k]
        """Return the chance of each child that two sources propose, by its joint_features()."""
        chances = hazards(table, self.laws.joint.weights)
        return np.asarray(chances * min(_SUREST / float(chances.sum()), 1.0))

    def observe_together(self, table: FloatArray, taken: int | None) -> None:  # [k, J]
        """Learn which child the target accepted where two sources had proposed children."""
        self.laws.joint.learn(table, np.arange(len(table)) == taken)

    # --- masks of a block draft

    def masked(self, rows: FeatureRows, greedy: bool) -> list[float]:  # [k, F] -> [k]
        """Return the chance of each child that a mask proposes, by its mask_features()."""
        return self.laws.masks[greedy].chances(rows)

    def observe_masked(
        self, rows: FeatureRows, greedy: bool, offset: int, taken: int | None
    ) -> None:
        """Learn which child of a mask of this offset the target accepted; taken: its index, or
        None.
        """
        likely = taken is not None and self.masked(rows[: taken + 1], greedy)[taken] >= LIKELY
        self.laws.masks[greedy].observe(rows, taken)
        at = min(offset, OFFSETS) - 1
        self.mask_rates.learn(slice(at, at + 1), at if likely else None, slice(at, at + 1))

    def mask_rate(self, offset: int) -> float:
        """Return how often the target accepts a LIKELY child of a mask of this offset, from 1."""
        at = min(offset, OFFSETS) - 1
        return float(self.mask_rates.hits[at] / self.mask_rates.tries[at])

    def to_record(self) -> dict[str, Any]:
        """Return the learned state as a prior for other sessions: plain values for JSON."""
        laws = self.laws
        ranks, masks = (
            {kind: law.to_record() for kind, law in zip(KINDS, two, strict=True)}
            for two in (laws.ranks, laws.masks)
        )
        return {
            "version": VERSION,
            "features": list(RANK_FEATURES),
            "laws": ranks,
            "rates": self.rates.to_record(CERTAINTY / self.rates.tries[0]),
            "copying": {"copies": laws.copies.to_record(), "joint": laws.joint.to_record()},
            "guessing": {
                "laws": masks,
                **self.mask_rates.to_record(_RATES_WORTH / self.mask_rates.tries),
            },
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

    round_trip: seconds of an exchange with the target without work; 0 for a target beside the draft
    """

    draft: Times  # of calls of one row
    target: Times
    acceptance: AcceptanceModel
    round_trip: float = 0.0
