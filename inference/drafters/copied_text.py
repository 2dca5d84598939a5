"""Prompt lookup: continuations of the same words in this text, and the children that they propose
in a draft tree.

They are found in a suffix automaton of a sequence of tokens, which grows at its end. It is the
smallest automaton that accepts every suffix (Blumer et al., 1985). Each state stands for a set of
substrings that end at the same positions. So it tells, for a context of any length, which tokens
followed it before and how often. A token costs amortized constant time. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

from inference.draft_tuning import TUNING
from inference.drafters.draft_rule import DraftRule
from inference.drafters.draft_tree import DraftTree, Named
from inference.growing_tree import NOWHERE, Mark
from inference.planner.acceptance import AcceptanceModel
from inference.planner.child_features import Following, copy_features

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


class CopySource:
    """Continuations for one text at a time, copied from its own tokens."""

    def __init__(self) -> None:
        self._own = SuffixAutomaton()

    def open(self, prompt: Sequence[int]) -> None:
        """Begin a text."""
        self._own = SuffixAutomaton()
        for token in prompt:
            self.extend(token)

    def extend(self, token: int) -> None:
        """Append a token to the text."""
        self._own.extend(token)

    def close(self) -> None:
        """End the text."""
        self._own = SuffixAutomaton()

    @property
    def end(self) -> Match:
        """The context of the next token."""
        return self._own.end

    def step(self, context: Match, token: int) -> Match:
        """Return the context with one more token behind it."""
        return self._own.step(context, token)

    def following(self, context: Match) -> tuple[int, list[Following]]:
        """Return the matched length, and what followed it most often, the most frequent first."""
        return context.length, _named(self._own, context.state) if context.length else []


def _named(automaton: SuffixAutomaton, state: int) -> list[Following]:
    counts, latest = automaton.counts, automaton.latest
    seen = [(counts[after], latest[after], token) for token, after in automaton.next[state].items()]
    seen.sort(reverse=True)
    left = sum(count for count, _, _ in seen)
    newest = max((position for _, position, _ in seen), default=0)
    named = list[Following]()
    for count, position, token in seen[: TUNING.copied]:
        left -= count
        named.append(Following(token, count, left, position == newest))
    return named


class TextSource(Protocol):
    """Continuations for one text at a time. A context is of the source's own type."""

    def open(self, prompt: Sequence[int]) -> None:
        """Begin a text."""
        ...

    def extend(self, token: int) -> None:
        """Append a token to the text."""
        ...

    def close(self) -> None:
        """End the text."""
        ...

    @property
    def end(self) -> Any:
        """The context of the next token."""
        ...

    def step(self, context: Any, token: int) -> Any:
        """Return the context with one more token behind it."""
        ...

    def following(self, context: Any) -> tuple[int, list[Following]]:
        """Return the matched length, and what followed it, the most frequent first."""
        ...


class CopiedText:
    """Names the children of a draft tree's nodes by a text source, and learns what that is worth.

    learned: chances of copied tokens
    """

    _rule: DraftRule
    _tree: DraftTree
    _contexts: dict[Mark, Any]  # of the source, up to a node

    def __init__(self, source: TextSource, learned: AcceptanceModel) -> None:
        self._source, self._learned = source, learned

    def open(self, prompt: Sequence[int], rule: DraftRule, tree: DraftTree) -> None:
        """Begin a text. What its rule excludes is not copied."""
        self._rule, self._tree, self._contexts = rule, tree, tree.table()
        self._source.open(prompt)

    def close(self) -> None:
        """End the text."""
        self._source.close()

    def name(self, node: Mark) -> None:
        """Let the node have the children that followed the same words before, if some did."""
        length, following = self._source.following(self._context(node))
        allowed = self._rule.allows(self._tree, node, [one.token for one in following])
        following = list(compress(following, allowed))
        if following:
            ids, table = [one.token for one in following], copy_features(length, following)
            self._tree.copied[node] = Named(ids, table, self._learned.copied(table))

    def learn(self, node: Mark, token: int) -> None:
        """Learn whether the token that the target chose at this node was copied."""
        named = self._tree.copied.get(node)
        if named is not None:
            self._learned.observe_copied(named.table, named.place_of(token))

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text."""
        for token in tokens:
            self._source.extend(token)

    def _context(self, node: Mark) -> Any:
        """The context behind this node's token."""
        context = self._contexts.get(node)
        if context is None:
            above, source = self._tree.parent(node), self._source
            if above == NOWHERE:
                context = source.end
            else:
                context = source.step(self._context(above), self._tree.token(node))
            self._contexts[node] = context
        return context
