"""Chances that the target takes a child, by its source's claims, learnt from verdicts.

P(child | none before it) is a logistic function of the child's features, a law. Ranks of a draft
and words of a mask have a law for each kind of decoding; copied text has one, and so has a child
that model and copies judge together. A verdict moves a law's weights by a Newton step. Old evidence
fades towards a prior. Output never depends on it, only how much is accepted. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.planner.child_features import (
    EXCLUDED,
    RANK_FEATURES,
    SPAN,
    FloatArray,
)
from inference.planner.law import (
    CERTAINTY,
    STEEPEST,
    HitRates,
    Law,
    Rows,
    broken,
    hazards,
)

VERSION = 4
KINDS = ("sampled", "greedy")
"""Kinds of decoding."""

RANKS = 16
"""Ranks whose average rates are kept; edges_of() takes rows of any width."""

OFFSETS = 15
"""Masks behind a node whose rates are kept. Later ones have the last one's."""

LIKELY = 0.15
"""Least chance of a child that counts for a mask's rate. Less likely ones are spread over more
nodes than a forward has.
"""

_RATES_WORTH = 20.0  # verdicts that a saved rate of masks counts for at most
_SUREST = 0.999  # sum of the chances of children that two sources judge together, at most


class Laws(NamedTuple):
    """The laws of one pair of models. Two: of sampled decoding, then of greedy decoding."""

    ranks: tuple[Law, Law]
    masks: tuple[Law, Law]
    copies: Law
    joint: Law


class AcceptanceModel:
    """The agreement of draft and target: starts from a record, and learns from verdicts.

    A row of scores is what Model.rank gives for one node, best first: log-probabilities at
    temperature 0, perturbed scores above it.

    rates: how often each rank was taken
    mask_rates: by a mask's offset, how often the text came to a node with its children, and how
        often the target took a LIKELY one of these
    """

    def __init__(self, laws: Laws, rates: HitRates, mask_rates: HitRates) -> None:
        self.laws, self.rates, self.mask_rates = laws, rates, mask_rates
        self._edges: dict[int, FloatArray] = {}  # mean_edges() by k, until the next verdict

    # --- ranks of a draft

    def edges_of(
        self, tables: FloatArray, scores: NDArray[np.float32], greedy: bool
    ) -> FloatArray:  # [m, k, F], [m, k] -> [m, k]
        """Probability that the target takes each child, given that it reaches the node.

        tables: rank_features() of the children

        A row's sum is below 1. A child that top-k or top-p excludes has probability 0.
        """
        chances = broken(hazards(tables, self.laws.ranks[greedy].weights))
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
        self.laws.ranks[greedy].learn(
            tables[inside], (np.arange(k) == hits[:, None])[inside], len(taken)
        )
        for count, rank in zip(come_to.tolist(), taken, strict=True):
            self.rates.learn(slice(count), rank)
        self._edges = {}

    def mean_edges(self, k: int) -> FloatArray:  # [k]
        """Return probabilities of the ranks, averaged over nodes: for plans made without scores.

        Non-increasing, with a sum below 1. Raises ValueError unless k is 1 to RANKS.
        """
        if not 1 <= k <= RANKS:
            raise ValueError(f"rates of 1 to {RANKS} ranks are known: got k = {k}")
        if k not in self._edges:
            rates = self.rates
            self._edges[k] = _descending(broken(rates.hits[:k] / rates.tries[:k]))
        return self._edges[k]

    # --- copied text

    def copied(self, rows: Rows) -> list[float]:  # [k, F] -> [k]
        """Return the chance of each copied token, by its copy_features()."""
        return self.laws.copies.chances(rows, SPAN)

    def observe_copied(self, rows: Rows, taken: int | None) -> None:
        """Learn which of the copied tokens the target took, or that it took none."""
        self.laws.copies.observe(rows, taken)

    def together(self, table: FloatArray) -> FloatArray:  # [k, J] -> [k]
        """Return the chance of each child that two sources judge, by its joint_features()."""
        chances = hazards(table, self.laws.joint.weights)
        return np.asarray(chances * min(_SUREST / float(chances.sum()), 1.0))

    def observe_together(self, table: FloatArray, taken: int | None) -> None:  # [k, J]
        """Learn which child the target took where two sources had named children."""
        self.laws.joint.learn(table, np.arange(len(table)) == taken)

    # --- masks of a block draft

    def masked(self, rows: Rows, greedy: bool) -> list[float]:  # [k, F] -> [k]
        """Return the chance of each child that a mask names, by its mask_features()."""
        return self.laws.masks[greedy].chances(rows, STEEPEST)

    def observe_masked(self, rows: Rows, greedy: bool, offset: int, taken: int | None) -> None:
        """Learn which child of a mask of this offset the target took, or that it took none."""
        likely = taken is not None and self.masked(rows[: taken + 1], greedy)[taken] >= LIKELY
        self.laws.masks[greedy].observe(rows, taken)
        at = min(offset, OFFSETS) - 1
        self.mask_rates.learn(slice(at, at + 1), at if likely else None, slice(at, at + 1))

    def mask_rate(self, offset: int) -> float:
        """Return how often the target takes a LIKELY child of a mask of this offset, from 1."""
        at = min(offset, OFFSETS) - 1
        return float(self.mask_rates.hits[at] / self.mask_rates.tries[at])

    def to_record(self) -> dict[str, Any]:
        """Return what was learnt, as a prior for other sessions: plain values for JSON."""
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
