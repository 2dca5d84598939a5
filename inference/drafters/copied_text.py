"""Prompt lookup: proposes the tokens that followed the same context earlier in prompt or output.

A suffix automaton (Blumer et al., 1985) knows for a context of any length which tokens followed,
and how often. Appending a token takes amortized constant time. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from inference.drafters.draft_row import DraftRule
from inference.drafters.draft_tree import DraftTree, ProposedChildren
from inference.loop.draft_tuning import TUNING
from inference.planner.acceptance import Law
from inference.planner.child_features import Following, copy_features
from inference.tree.growing_tree import NOWHERE, Mark

ROOT = 0
"""The state of the empty context."""

COUNTED = 64
"""Maximum states in which a new token is counted, beginning with the longest contexts.

Without a maximum, a sequence that repeats a single token has as many such states as tokens.
"""


class Match(NamedTuple):
    """State and length in tokens of the longest suffix of a context that occurred before."""

    state: int = ROOT
    length: int = 0


class SuffixAutomaton:
    """The suffix automaton of a sequence of tokens.

    next: [state] token -> state of the context with that token appended
    counts: [state] how often the state's substrings occurred
    latest: [state] position at which they last ended
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.counts, self.latest = [0], [-1]
        self._lengths, self._links = [0], [-1]
        self._last, self._size = ROOT, 0
        for token in tokens:
            self.extend(token)

    def __len__(self) -> int:
        """Return the number of tokens in the sequence."""
        return self._size

    @property
    def end(self) -> Match:
        """The longest suffix of the sequence that occurred earlier in the sequence."""
        state = self._links[self._last] if self._size else ROOT
        return Match(state, self._lengths[state])

    def extend(self, token: int) -> None:
        """Append a token to the sequence."""
        new = self._add(self._lengths[self._last] + 1, {})
        state = self._last
        while state >= ROOT and token not in self.next[state]:
            self.next[state][token] = new
            state = self._links[state]
        self._links[new] = ROOT if state < ROOT else self._behind(state, token)
        self._last = new
        self._count(new)
        self._size += 1

    def step(self, match: Match, token: int) -> Match:
        """Return the match of a context with a token appended."""
        state, length = match
        while token not in self.next[state]:
            if state == ROOT:
                return Match()
            state = self._links[state]
            length = self._lengths[state]
        return Match(self.next[state][token], length + 1)

    def following(self, match: Match) -> list[Following]:
        """Return the tokens that followed a context most often, the most frequent first."""
        if not match.length:
            return []
        counts, latest = self.counts, self.latest
        followers = [
            (counts[after], latest[after], token) for token, after in self.next[match.state].items()
        ]
        followers.sort(reverse=True)
        rarer = sum(count for count, _, _ in followers)
        newest = max((position for _, position, _ in followers), default=0)
        following = list[Following]()
        for count, position, token in followers[: TUNING.copied]:
            rarer -= count
            following.append(Following(token, count, rarer, position == newest))
        return following

    def _behind(self, state: int, token: int) -> int:
        """Return the state of exactly this context and token; split a state of longer ones, too."""
        after, length = self.next[state][token], self._lengths[state] + 1
        if self._lengths[after] == length:
            return after
        split = self._add(length, dict(self.next[after]))
        self._links[split], self._links[after] = self._links[after], split
        self.counts[split], self.latest[split] = self.counts[after], self.latest[after]
        while state >= ROOT and self.next[state].get(token) == after:
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


class CopiedText:
    """Proposes the tokens that followed a node's context earlier in prompt or output, and learns
    their probabilities.

    law: probabilities of copied tokens, by their copy_features()
    """

    _rule: DraftRule
    _tree: DraftTree
    _text: SuffixAutomaton
    _contexts: dict[Mark, Match]  # up to a node

    def __init__(self, law: Law) -> None:
        self._law = law

    def open(self, prompt: Sequence[int], rule: DraftRule, tree: DraftTree) -> None:
        """Begin a request. Tokens that its rule excludes are not proposed."""
        self._rule, self._tree, self._contexts = rule, tree, tree.table()
        self._text = SuffixAutomaton(prompt)

    def propose(self, node: Mark) -> None:
        """Propose the node's children, if its context occurred before."""
        context = self._context(node)
        following = self._text.following(context)
        allowed = self._rule.allows(self._tree, node, [follower.token for follower in following])
        following = list(compress(following, allowed))
        if following:
            table = copy_features(context.length, following)
            ids = [follower.token for follower in following]
            self._tree.copied[node] = ProposedChildren(ids, table, self._law.chances(table))

    def learn(self, node: Mark, token: int) -> None:
        """Learn whether the token that the target chose at this node was proposed."""
        children = self._tree.copied.get(node)
        if children is not None:
            self._law.observe(children.table, children.index_of(token))

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        for token in tokens:
            self._text.extend(token)

    def _context(self, node: Mark) -> Match:
        """Return the context that ends with this node's token."""
        context = self._contexts.get(node)
        if context is None:
            above = self._tree.parent(node)
            if above == NOWHERE:
                context = self._text.end
            else:
                context = self._text.step(self._context(above), self._tree.token(node))
            self._contexts[node] = context
        return context
