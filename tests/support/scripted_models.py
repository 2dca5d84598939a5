"""Drafts without weights: what they say is a hash of the whole prefix.

The model keeps keys as a real one does (a token and a position in each slot) and reads the prefix
of a node from what it sees, so that wrong bookkeeping is a gap in the prefix or another answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Chosen, Ranked, Segment
from inference.sampling import SamplingParams
from tests.support import exact
from tests.support.exact import GREEDY, HandModel, RowTokens, next_token
from tests.support.scripted_grammar import allowed_at, nearest

VOCABULARY = 40

Prefix = tuple[int, ...]
Says = Callable[[Prefix], tuple[list[int], list[float]]]
"""The children of a prefix, best first, with their scores (eight of each)."""


def dice(prefix: Sequence[int], seed: int) -> int:
    """A number below 2**32 that depends on every token."""
    return zlib.crc32(np.array(prefix, dtype=np.int32).tobytes(), seed)


def target_token(prefix: Sequence[int]) -> int:
    """What the target of tests/support/exact.py says after these tokens."""
    return next_token(np.array(prefix, dtype=np.int64), GREEDY, VOCABULARY)


def own_text(prompt: Sequence[int], tokens: int) -> list[int]:
    """What the target says alone."""
    return exact.own_text(prompt, tokens, kinds=VOCABULARY)


def _after(token: int) -> list[int]:
    """Other tokens: never this one."""
    return [(token + step) % VOCABULARY for step in range(1, 9)]


def perfect(prefix: Prefix) -> tuple[list[int], list[float]]:
    token = target_token(prefix)
    return [token, *_after(token)[:7]], [-0.02, *[-5.0 - rank for rank in range(7)]]


def useless(prefix: Prefix) -> tuple[list[int], list[float]]:
    return _after(target_token(prefix)), [-1.5 - 0.3 * rank for rank in range(8)]


def skilled(params: SamplingParams, kinds: int, *, right: int) -> Says:
    """A draft that names the target's token first in so many of 100 cases, second in half of the
    others, and is less sure where it is wrong.
    """

    def says(prefix: tuple[int, ...]) -> tuple[list[int], list[float]]:
        token = next_token(np.array(prefix, dtype=np.int64), params, kinds)
        others = [(token + step) % max(kinds, 9) for step in range(1, 9)]
        chance = dice(prefix, 11) % 100
        scores = [-0.5 if chance < right else -1.0, *[-2.0 - 0.5 * rank for rank in range(7)]]
        if chance < right:
            return [token, *others[:7]], scores
        if chance < (100 + right) // 2 and right:
            return [others[0], token, *others[1:7]], scores
        return others, scores

    return says


disagreeing = skilled(GREEDY, VOCABULARY, right=70)


def ruled(
    named: list[int], scores: list[float], allowed: NDArray[np.bool_]
) -> tuple[list[int], list[float]]:
    """What a script says under a rule: the nearest tokens that are allowed, then excluded ones."""
    kept = list(dict.fromkeys(nearest(token, allowed) for token in named))
    excluded = [token for token in np.flatnonzero(~allowed).tolist() if token not in kept]
    missing = len(named) - len(kept)
    return kept + excluded[:missing], scores[: len(kept)] + [-1e9] * missing


class ScriptedModel(HandModel):
    """A Model that says what a script says."""

    def __init__(
        self, says: Says, *, rows: int = 1, capacity: int = 1200, max_nodes: int = 64
    ) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.calls = 0
        self._says = says
        self._held = RowTokens(rows, capacity)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [Chosen(ranked.ids[:, 0]) for ranked in self.rank(segments, 1)]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.calls += 1
        return [self._rank(segment, k) for segment in segments]

    def _rank(self, segment: Segment, k: int) -> Ranked:
        ids, scores = list[list[int]](), list[list[float]]()
        texts, allowed = self._held.seen(segment), allowed_at(segment, VOCABULARY)
        for text, row in zip(texts, allowed, strict=True):
            named, given = ruled(*self._says(tuple(text.tolist())), row)
            ids.append(named[:k])
            scores.append(given[:k])
        return Ranked(np.array(ids, dtype=np.int32), np.array(scores, dtype=np.float32))
