"""What the words of a mask are worth: chances of tokens that a block draft names without knowing
the tokens before them.

A mask stands some positions behind the last token that its draft knew. What it says is a marginal:
it fits every way the text may go on. So its chances fall with its offset, and where the path leaves
what the draft held for likely. A law is learnt from every verdict, as for the draft's own ranks.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.law import FADING, FloatArray, Law, read_law, read_numbers

GUESS_FEATURES = (
    *("one", "odds", "behind", "entropy", "first", "rank"),
    *("offset", "path", "path_odds", "again"),
)
"""Of a child that a mask names. Those of a ranked child but for its depth; then the mask's offset,
how surprising the path from the known token is, that times the odds, and whether the child repeats
the token before it.
"""

SAID = 6
"""How many of these depend on the mask's scores alone. They stand first."""

LIKELY = 0.15
"""Least chance of a child that counts for a mask's rate. Less likely ones are spread over more
nodes than a forward has.
"""

OFFSETS = 15
"""Masks behind a node whose rates are kept. Later ones have the last one's."""

_KINDS = ("sampled", "greedy")
_STEEPEST = 12.0  # largest absolute log odds
_DEEP, _SURPRISE = 8, 8.0  # an offset and a surprise beyond these say no more
_RATES_WORTH = 20.0  # verdicts that a saved rate counts for at most


def guess_features(
    said: Sequence[Sequence[float]], offset: int, path: float, again: int | None
) -> list[list[float]]:  # [k, SAID] -> [k, F]
    """Return the GUESS_FEATURES of a mask's children.

    offset: positions between the known token and the mask, from 1
    path: negative logarithm of the path's chance, from the known token to this node
    again: which child repeats the node's own token, if one does
    """
    far, surprise = min(offset, _DEEP) / _DEEP, min(path, _SURPRISE) / _SURPRISE
    return [
        [*row, far, surprise, surprise * row[1], float(rank == again)]
        for rank, row in enumerate(said)
    ]


class Guessing:
    """Chances of what masks name: a law for each kind of decoding, and a rate for each offset.

    laws: of sampled decoding, then of greedy decoding
    tries, hits: how often the text came to a node with the children of a mask of each offset, and
        how often the target took a LIKELY one of these

    Raises InvalidRequest unless there are OFFSETS rates, with 0 < hits < tries.
    """

    def __init__(
        self, laws: tuple[Law, Law], tries: Sequence[float], hits: Sequence[float]
    ) -> None:
        if len(tries) != OFFSETS or len(hits) != OFFSETS:
            raise InvalidRequest(
                f"masks have rates for {OFFSETS} offsets: got {len(tries)} tries and {len(hits)} "
                "hits"
            )
        if not all(0 < hit < tried < math.inf for tried, hit in zip(tries, hits, strict=True)):
            raise InvalidRequest("each offset's hits must lie between 0 and its tries")
        self._laws, self._tries, self._hits = laws, list(tries), list(hits)
        self._prior = list(tries), list(hits)

    def chances(
        self, table: Sequence[Sequence[float]], greedy: bool
    ) -> list[float]:  # [k, F] -> [k]
        """Return the probability that the target takes each child. Their sum is below 1."""
        weights, left, chances = self._laws[greedy].weights.tolist(), 1.0, list[float]()
        for row in table:  # plain numbers: a row is too short for an array
            odds = sum(weight * value for weight, value in zip(weights, row, strict=True))
            taken = left / (1 + math.exp(-min(max(odds, -_STEEPEST), _STEEPEST)))
            chances.append(taken)
            left -= taken
        return chances

    def observe(
        self, table: Sequence[Sequence[float]], greedy: bool, offset: int, taken: int | None
    ) -> None:
        """Learn which child of a mask of this offset the target took, or that it took none."""
        reached = len(table) if taken is None else taken + 1
        hits = np.zeros(reached, dtype=np.bool_)
        likely = False
        if taken is not None:
            hits[taken] = True
            likely = self.chances(table[:reached], greedy)[taken] >= LIKELY
        self._laws[greedy].learn(np.array(table[:reached]), hits)
        at = min(offset, OFFSETS) - 1
        for kept, prior in zip((self._tries, self._hits), self._prior, strict=True):
            kept[at] += (1 - FADING) * (prior[at] - kept[at])
        self._tries[at] += 1
        self._hits[at] += likely

    def rate(self, offset: int) -> float:
        """Return how often the target takes a LIKELY child of a mask of this offset, from 1."""
        at = min(offset, OFFSETS) - 1
        return self._hits[at] / self._tries[at]

    def to_record(self) -> dict[str, Any]:
        """Return what was learnt, as a prior for other sessions."""
        shares = [min(1.0, _RATES_WORTH / tried) for tried in self._tries]
        return {
            "laws": {kind: law.to_record() for kind, law in zip(_KINDS, self._laws, strict=True)},
            "tries": [share * tried for share, tried in zip(shares, self._tries, strict=True)],
            "hits": [share * hit for share, hit in zip(shares, self._hits, strict=True)],
        }

    @classmethod
    def read(cls, record: Json) -> Guessing:
        """Read what to_record() described. Raises InvalidRequest."""
        laws = record.field("laws")
        sampled, greedy = (read_law(laws.field(kind), len(GUESS_FEATURES)) for kind in _KINDS)
        tries, hits = (read_numbers(record.field(name)) for name in ("tries", "hits"))
        return record.make(cls, (sampled, greedy), tries, hits)


def said_by(table: FloatArray) -> list[list[float]]:  # [k, >= SAID] -> [k, SAID]
    """Return what a mask's scores say of its children, from the features of ranked children."""
    said: list[list[float]] = table[:, :SAID].tolist()
    return said
