"""A suffix automaton of one sequence of tokens, which grows at its end.

It is the smallest automaton that accepts every suffix (Blumer et al., 1985). Each state stands for
a set of substrings that end at the same positions. So it tells, for a context of any length, which
tokens followed it before and how often. A token costs amortized constant time. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT = 0
"""The state of the empty context."""

COUNTED = 64
"""States that a new token is counted in at most, those of the longest contexts first.

A text that repeats one token has as many such states as it has tokens.
"""


class Match(NamedTuple):
    """The longest known end of a context: its state, and its length in tokens."""

    state: int = ROOT
    length: int = 0


class SuffixAutomaton:
    """next: [state] token -> state of the context with that token behind it
    counts: [state] how often its substrings occurred
    latest: [state] position at which they ended last
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.counts, self.latest = [0], [-1]
        self._lengths, self._links = [0], [-1]
        self._last, self._size = ROOT, 0

    def __len__(self) -> int:
        """Tokens of the sequence."""
        return self._size

    @property
    def end(self) -> Match:
        """The longest end of the sequence that occurred in it before."""
        state = self._links[self._last] if self._size else ROOT
        return Match(state, self._lengths[state])

    def extend(self, token: int) -> None:
        """Append a token to the sequence."""
        made = self._add(self._lengths[self._last] + 1, {})
        state = self._last
        while state >= ROOT and token not in self.next[state]:
            self.next[state][token] = made
            state = self._links[state]
        self._links[made] = ROOT if state < ROOT else self._behind(state, token)
        self._last = made
        self._count(made)
        self._size += 1

    def step(self, match: Match, token: int) -> Match:
        """Return the match of a context with one more token behind it."""
        state, length = match
        while token not in self.next[state]:
            if state == ROOT:
                return Match()
            state = self._links[state]
            length = self._lengths[state]
        return Match(self.next[state][token], length + 1)

    def _behind(self, state: int, token: int) -> int:
        """The state of exactly this context and the token. A state that also stands for longer
        substrings is split.
        """
        found, length = self.next[state][token], self._lengths[state] + 1
        if self._lengths[found] == length:
            return found
        split = self._add(length, dict(self.next[found]))
        self._links[split], self._links[found] = self._links[found], split
        self.counts[split], self.latest[split] = self.counts[found], self.latest[found]
        while state >= ROOT and self.next[state].get(token) == found:
            self.next[state][token] = split
            state = self._links[state]
        return split

    def _count(self, state: int) -> None:
        for _ in range(COUNTED):
            if state <= ROOT:
                return
            self.counts[state] += 1
            self.latest[state] = self._size
            state = self._links[state]

    def _add(self, length: int, following: dict[int, int]) -> int:
        self.next.append(following)
        self.counts.append(0)
        self.latest.append(-1)
        self._lengths.append(length)
        self._links.append(ROOT)
        return len(self.next) - 1
