"""A target with real text, and drafts that agree with it as much as one likes.

The target is the embedded one. A draft says the same after every prefix plus noise that depends on
the prefix alone: it errs where the target is unsure, as drafts do, and more of the noise means more
errors. A draft may also have no idea now and then: at some prefixes the target's own token is none
of its guesses. Noise alone hardly ever does that to a vocabulary of 512, and large vocabularies do
it to every draft. All keep the sampling contract and answer from memory what was asked before, so
that many settings can be tried on the same texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.regret.prefixes import EMPTY, Prefixes
from inference.backends import Chosen, Ranked, Segment
from inference.model.choice.sampler import Sampling, choose_greedy, choose_open, rank, rank_greedy
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray

CAPACITY, MOST_NODES = 4096, 1024
"""Slots of a row, in which nothing is stored but which prefix they are; and nodes of a call."""

_RANKED = 16  # children that are ranked when fewer are asked for

_SALT = 372
"""Chosen so that the share comes out alike on all texts of the study."""

_WORD = 2**64
OUT_OF_REACH = 50.0
"""Below the least logit; more than sampling's noise makes up for."""


class PathModel:
    """Rows whose slots hold the prefix that ends there: all that a Model's cache is needed for.

    child: the number of the prefix that goes on with a token
    """

    capacity, max_nodes, masks, branches = CAPACITY, MOST_NODES, False, True

    def __init__(self, child: Callable[[int, int], int], rows: int) -> None:
        self.rows, self._child = rows, child
        self._held: IntArray = np.zeros((rows, CAPACITY + 1), dtype=np.int32)
        self._lengths: IntArray = np.zeros((rows, CAPACITY + 1), dtype=np.int32)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        for held in (self._held, self._lengths):
            held[target, :slots] = held[source, :slots]

    def _picked(self, segment: Segment) -> list[int]:
        """The prefixes that end in the picked nodes; all nodes' are noted by slot."""
        held, lengths = self._held[segment.row], self._lengths[segment.row]
        seen = segment.context.shape[1]
        own = np.eye(len(segment.tokens), dtype=np.bool_)
        inside = np.where(segment.tree_mask & ~own, segment.positions[None] + 1, 0)
        before = (
            np.where(segment.context, lengths[None, :seen], 0)
            if seen
            else np.zeros((1, 1), dtype=np.int32)
        )
        # the last token that a node sees is its parent
        above, slot = inside.argmax(1), np.broadcast_to(before.argmax(1), len(inside))
        within = inside.max(1) > before.max(1)
        prefixes = [EMPTY] * len(segment.tokens)
        for node in np.argsort(segment.positions, kind="stable").tolist():
            parent = (
                prefixes[above[node]]
                if within[node]
                else int(held[slot[node]])
                if segment.positions[node]
                else EMPTY
            )
            prefixes[node] = self._child(parent, int(segment.tokens[node]))
        held[segment.slots] = prefixes
        lengths[segment.slots] = segment.positions + 1
        return [prefixes[node] for node in segment.pick.tolist()]


class Level(NamedTuple):
    """A draft by its noise: the standard deviation, in logits.

    misses: share of prefixes after which the target's token is none of its guesses, whatever the
        noise
    knows: share of the target's own logits in what it says
    """

    name: str
    noise: float = 0.0
    misses: float = 0.0
    knows: float = 1.0


TARGET = Level("target")
MISSES = Level("misses", 1.0, misses=0.036)
"""At 4 to 5 % of the texts' tokens it misses, as real drafts do: the noise's own misses (at
temperature 0.8 one in a hundred) are among them.
"""

USELESS = Level("useless", 5.0, knows=0.0)
"""As sure of itself as the target, and never right."""

LEVELS = {level.name: level for level in (Level("mid", 1.0), MISSES, USELESS)}


class PrefixModel(PathModel):
    """A Model that says what Prefixes say, with the faults of its level."""

    def __init__(self, prefixes: Prefixes, level: Level = TARGET) -> None:
        super().__init__(prefixes.child, 1)
        self._prefixes, self._level = prefixes, level
        self._target = PrefixModel(prefixes) if level.misses else None
        self._chosen = defaultdict[SamplingParams, dict[int, int]](dict)
        self._ranked = defaultdict[tuple[SamplingParams, int], dict[int, Ranked]](dict)

    def apart(self) -> PrefixModel:
        """A copy of this model with rows of its own. Both remember what either has answered."""
        other = copy(self)
        other._held, other._lengths = np.zeros_like(self._held), np.zeros_like(self._lengths)
        return other

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [Chosen(self.choices(self._picked(segment), segment.params)) for segment in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        width, answers = max(k, _RANKED), list[Ranked]()
        for params, prefixes in ((one.params, self._picked(one)) for one in segments):
            known = self._ranked[params, width]
            if missing := [one for one in dict.fromkeys(prefixes) if one not in known]:
                logits, sampling, positions = self._computed(missing, params)
                ranked = (
                    rank_greedy(logits, width)
                    if params.greedy
                    else rank(logits, sampling, positions, width)
                )
                ids, scores = (part[0].numpy() for part in ranked)
                known.update(zip(missing, map(Ranked, ids, scores), strict=True))
            rows = [known[prefix] for prefix in prefixes]
            ids, scores = (
                np.stack([row.ids for row in rows]),
                np.stack([row.scores for row in rows]),
            )
            answers.append(Ranked(ids[:, :k], scores[:, :k]))
        return answers

    def choices(self, prefixes: Sequence[int], params: SamplingParams) -> IntArray:  # [n]
        """Choices after each of these."""
        known = self._chosen[params]
        if missing := [one for one in dict.fromkeys(prefixes) if one not in known]:
            logits, sampling, positions = self._computed(missing, params)
            span = 1 + int(positions.max() - positions.min())
            chosen = (
                choose_greedy(logits)
                if params.greedy
                else choose_open(logits, sampling, positions, span)
            )
            known.update(zip(missing, chosen[0].tolist(), strict=True))
        return np.array([known[prefix] for prefix in prefixes], dtype=np.int32)

    def _computed(
        self, prefixes: Sequence[int], params: SamplingParams
    ) -> tuple[Tensor, Sampling, Tensor]:
        """Logits [1, n, V] with noise and misses, sampling, and positions [1, n] of the choices."""
        logits, level = self._prefixes.logits(prefixes), self._level
        if level.noise:
            logits = level.knows * logits + level.noise * self._disturbance(prefixes)
        if self._target is not None:
            shares = [drawn(self._prefixes.key(prefix) + _SALT) for prefix in prefixes]
            if missed := [at for at, share in enumerate(shares) if share < level.misses]:
                tokens = self._target.choices([prefixes[at] for at in missed], params)
                least = logits[missed].amin(-1) - OUT_OF_REACH
                logits[missed, torch.from_numpy(tokens).long()] = least
        lengths = [[self._prefixes.length(prefix) for prefix in prefixes]]
        positions = torch.tensor(lengths, dtype=torch.int32)
        return logits[None], Sampling.of([params], torch.device("cpu")), positions

    def _disturbance(self, prefixes: Sequence[int]) -> Tensor:  # [n, V]
        keys = (np.random.Philox(key=self._prefixes.key(prefix)) for prefix in prefixes)
        noise = (np.random.Generator(key) for key in keys)
        size = self._prefixes.vocabulary
        return torch.from_numpy(np.stack([one.standard_normal(size, np.float32) for one in noise]))


def drawn(key: int) -> float:
    """A number from 0 to 1, evenly spread whatever keys there are (SplitMix64's last steps)."""
    word = key % _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % _WORD
    return (word ^ (word >> 31)) / _WORD
