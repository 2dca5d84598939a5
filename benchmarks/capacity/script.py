"""A target and drafts by script: texts that need no model, and guesses at them of a set quality.

The target's token depends on seed, position and the token before it, so a client can compute the
text that it should get, and a draft can be right as often as it is told to. What that takes on this
machine is nothing next to the emulated times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inference.backends import Chosen, Ranked, Segment
from inference.proposer import Nodes
from inference.tree import IntArray

VOCABULARY = 32_000
FLOOR = 0.005
"""Least value of a node below which a draft looks no further, as the growing tree's usual floor."""

LEVELS = 24
"""Depth of a growing tree."""

WIDE_GUESSES, WIDE_LEVELS = 8, 8
"""Guesses and levels of the tenant whose trees are full."""

DECOY_CHANCE = 0.9
"""Chance that a draft claims of each next token on a wrong way."""

_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = 2**64
_GUESS_SALT, _SURE_SALT = 0x5851F42D4C957F2D, 0x14057B7EF767814F


def mixed(seed: int, position: int, token: int) -> int:
    """64 bits, evenly spread."""
    word = (seed + position * _FACTORS[0] + token * _FACTORS[1]) % _WORD
    word = (word ^ (word >> 30)) * _FACTORS[1] % _WORD
    word = (word ^ (word >> 27)) * _FACTORS[2] % _WORD
    return word ^ (word >> 31)


def next_token(seed: int, position: int, token: int) -> int:
    """Token that the target chooses behind this one, which stands at this position."""
    return mixed(seed, position, token) % VOCABULARY


def next_tokens(seeds: IntArray, positions: IntArray, tokens: IntArray) -> IntArray:
    """Return what the target chooses behind each of many nodes. All arrays are [n]."""
    word = seeds.astype(np.uint64) + positions.astype(np.uint64) * np.uint64(_FACTORS[0])
    word += tokens.astype(np.uint64) * np.uint64(_FACTORS[1])
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FACTORS[1])
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_FACTORS[2])
    word ^= word >> np.uint64(31)
    return np.asarray(word % np.uint64(VOCABULARY), dtype=np.int32)


class ScriptedTarget:
    """A Model that chooses by next_token()."""

    copies_rows, masks, branches = True, False, True

    def __init__(self, rows: int, capacity: int, max_nodes: int) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        counts = [len(segment.pick) for segment in segments]
        seeds = np.repeat([segment.params.seed for segment in segments], counts)
        positions, tokens = (
            np.concatenate([getattr(segment, name)[segment.pick] for segment in segments])
            for name in ("positions", "tokens")
        )
        chosen = np.split(next_tokens(seeds, positions, tokens), np.cumsum(counts)[:-1])
        return [Chosen(tokens) for tokens in chosen]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError("this model is a target")

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """There are no keys."""


class Text:
    """The tokens that the target makes of a prompt."""

    def __init__(self, prompt: Sequence[int], seed: int) -> None:
        self.seed, self._start, self._tokens = seed, len(prompt) - 1, [prompt[-1]]

    def at(self, position: int) -> int:
        while len(self._tokens) <= position - self._start:
            place = self._start + len(self._tokens) - 1
            self._tokens.append(next_token(self.seed, place, self._tokens[-1]))
        return self._tokens[position - self._start]


class Skill(NamedTuple):
    """Skill of a draft: how often it is right. It is sure of a share of all positions.

    sure, unsure: the chance that the target's token is its first guess, its second, ...; what is
    missing to 1 are misses.
    """

    share: float
    sure: tuple[float, ...]
    unsure: tuple[float, ...]


SKILLS = {
    0.0: Skill(0.70, (0.97, 0.02), (0.57, 0.20, 0.10)),
    0.8: Skill(0.45, (0.97, 0.02), (0.52, 0.22, 0.12)),
}
"""By temperature, near the study's draft that misses: right at once at 85 % and 72 % of all
positions, none of its guesses right at 5 % and 8 %.
"""


@dataclass(eq=False)
class Node:
    """A node of a draft's tree. value: product of the chances from the text's beginning."""

    above: Node | None
    token: int
    chance: float
    value: float
    number: int | None = None


class Guesses(NamedTuple):
    """Children of a node on the text's own way. right: index of the target's token, if any is."""

    tokens: Sequence[int]
    chances: Sequence[float]
    right: int | None


class GrowingDraft:
    """A draft that looks one level further with every call and sends what it found at once.

    levels: below the root
    """

    decoy_chance = DECOY_CHANCE

    _root: int  # position of the last committed token
    _line: dict[int, Node]  # by position: the root, and what follows it on the text's own way
    _decoys: list[tuple[int, Node]]  # ends of wrong ways, and where they left the text's
    _found: list[Node]  # not sent yet
    _lost: bool  # none of the guesses behind the line is right

    def __init__(self, skill: Skill, levels: int = LEVELS) -> None:
        self._skill, self._levels = skill, levels

    def open(self, prompt: Sequence[int], seed: int) -> None:
        self._text = Text(prompt, seed)
        self._begin(len(prompt) - 1)

    def hear(self, length: int) -> None:
        """The text is so long now."""
        root = length - 1
        if root not in self._line:
            self._begin(root)
        self._root = root
        for place in [place for place in self._line if place < root]:
            del self._line[place]
        self._decoys = [(fork, node) for fork, node in self._decoys if fork >= root]

    def work(self) -> bool:
        """Make a call; False where there is nothing to look for."""
        tip = max(self._line)
        least = FLOOR * self._line[self._root].value
        on_way = self._line[tip].value >= least and not self._lost
        wrong = [(fork, node) for fork, node in self._decoys if node.value >= least]
        if self._depth >= self._levels or not (on_way or wrong):
            return False
        self._decoys = [
            (fork, self._add(node, (7 * node.token + 1) % VOCABULARY, self.decoy_chance))
            for fork, node in wrong
        ]
        if on_way:
            self._go_on(tip)
        self._deepest += 1
        return True

    def flush(self, first: int) -> Nodes | None:
        """Candidates that were found and not sent yet, numbered from `first` on."""
        found, self._found, parents = self._found, [], list[int]()
        for number, node in enumerate(found, first):
            assert node.above is not None, "the root is not sent"
            node.number, above = number, node.above.number
            parents.append(0 if above is None else number - above)
        tokens, chances = [node.token for node in found], [node.chance for node in found]
        return Nodes(self._root, first, parents, tokens, chances) if found else None

    def _begin(self, root: int) -> None:
        """Nothing is known but the root."""
        self._root = self._deepest = root
        self._line = {root: Node(None, self._text.at(root), 1.0, 1.0)}
        self._decoys, self._found, self._lost = [], [], False

    @property
    def _depth(self) -> int:
        return self._deepest - self._root

    def _go_on(self, tip: int) -> None:
        """Children of the last node that is on the text's way."""
        guesses, above = self.guess(tip + 1), self._line[tip]
        children = [
            self._add(above, token, chance)
            for token, chance in zip(guesses.tokens, guesses.chances, strict=True)
        ]
        if guesses.right != 0:
            self._decoys.append((tip, children[0]))
        self._lost = guesses.right is None
        if guesses.right is not None:
            self._line[tip + 1] = children[guesses.right]

    def guess(self, position: int) -> Guesses:
        """At the target's token for this position."""
        seed, right = self._text.seed, self._text.at(position)
        sure = mixed(seed ^ _SURE_SALT, position, right) < self._skill.share * _WORD
        chances = self._skill.sure if sure else self._skill.unsure
        drawn, rank = mixed(seed ^ _GUESS_SALT, position, right) / _WORD, 0
        while rank < len(chances) and drawn >= chances[rank]:
            drawn, rank = drawn - chances[rank], rank + 1
        tokens = [(right + 1 + index) % VOCABULARY for index in range(len(chances))]
        if rank == len(chances):
            return Guesses(tokens, chances, None)
        tokens[rank] = right
        return Guesses(tokens, chances, rank)

    def _add(self, above: Node, token: int, chance: float) -> Node:
        node = Node(above, token, chance, above.value * chance)
        self._found.append(node)
        return node


class WideDraft(GrowingDraft):
    """A tenant that wants the whole forward: full trees at once, every node claimed as certain."""

    decoy_chance = 1.0

    def __init__(self, skill: Skill) -> None:
        super().__init__(skill, WIDE_LEVELS)

    def guess(self, position: int) -> Guesses:
        honest = super().guess(position)
        more = range(len(honest.tokens), WIDE_GUESSES)
        tokens = [*honest.tokens, *((honest.tokens[0] + 100 + one) % VOCABULARY for one in more)]
        return Guesses(tokens, [1.0] * WIDE_GUESSES, honest.right)
