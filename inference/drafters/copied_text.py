"""Prompt lookup: continuations of the same words in this text and the user's earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from inference.draft_tuning import TUNING
from inference.drafters.draft_tree import DraftNode, Named
from inference.drafters.suffix_automaton import Match, SuffixAutomaton
from inference.planner.acceptance import AcceptanceModel
from inference.planner.child_features import Following, copy_features

_BETWEEN = -1  # stands between two texts; no token


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

    def __init__(self, source: TextSource, learned: AcceptanceModel) -> None:
        self._source, self._learned = source, learned

    def open(self, prompt: Sequence[int]) -> None:
        """Begin a text."""
        self._source.open(prompt)

    def close(self) -> None:
        """End the text."""
        self._source.close()

    def name(self, node: DraftNode) -> Named | None:
        """Return the children that followed the same words before, if some did."""
        length, following = self._source.following(self._context(node))
        if not following:
            return None
        table = copy_features(length, following)
        return Named([one.token for one in following], table, self._learned.copied(table))

    def hear(self, root: DraftNode, token: int) -> None:
        """Append a committed token, and learn whether it was copied at the root before it."""
        if root.copied is not None:
            ids, table, _ = root.copied
            self._learned.observe_copied(table, ids.index(token) if token in ids else None)
        self._source.extend(token)

    def _context(self, node: DraftNode) -> Any:
        """The context behind this node's token."""
        if node.context is None:
            above = node.parent
            node.context = (
                self._source.end
                if above is None
                else self._source.step(self._context(above), node.token)
            )
        return node.context


class Context(NamedTuple):
    """The longest ends of a text that occurred before: in itself, and in earlier texts."""

    own: Match
    earlier: Match


class History:
    """Earlier texts of one user, the latest `most` tokens of them. Never shared between users.

    automaton: may be read while another thread keeps a text
    """

    def __init__(self, most: int = TUNING.history) -> None:
        self._most, self._tokens = most, list[int]()
        self.automaton = SuffixAutomaton()

    def keep(self, tokens: Sequence[int]) -> None:
        """Add a text. Where that is too much, the older half is forgotten."""
        fresh = [*tokens, _BETWEEN]
        self._tokens += fresh
        if len(self._tokens) > self._most:
            self._tokens = fresh = self._tokens[len(self._tokens) - self._most // 2 :]
            self.automaton = SuffixAutomaton()  # whoever reads the old one goes on with that
        for token in fresh:
            self.automaton.extend(token)


class CopySource:
    """Continuations for one text at a time, copied from its own tokens and from a history."""

    def __init__(self, history: History | None = None) -> None:
        self._history = history
        self.open([])

    def open(self, prompt: Sequence[int]) -> None:
        """Begin a text."""
        self._tokens, self._own = list[int](), SuffixAutomaton()
        self._earlier, self._match = SuffixAutomaton(), Match()
        if self._history is not None:
            self._earlier = self._history.automaton
        for token in prompt:
            self.extend(token)

    def extend(self, token: int) -> None:
        """Append a token to the text."""
        self._tokens.append(token)
        self._own.extend(token)
        self._match = self._earlier.step(self._match, token)

    def close(self) -> None:
        """End the text. The history keeps it."""
        if self._tokens and self._history is not None:
            self._history.keep(self._tokens)
        self.open([])

    @property
    def end(self) -> Context:
        """The context of the next token."""
        return Context(self._own.end, self._match)

    def step(self, context: Context, token: int) -> Context:
        """Return the context with one more token behind it."""
        return Context(
            self._own.step(context.own, token), self._earlier.step(context.earlier, token)
        )

    def following(self, context: Context) -> tuple[int, list[Following]]:
        """Return the matched length, and what followed it most often, the most frequent first.

        The longer match decides; of two that are as long, that within the text.
        """
        own = context.own.length >= context.earlier.length
        match, automaton = (context.own, self._own) if own else (context.earlier, self._earlier)
        if not match.length:
            return 0, []
        return match.length, _named(automaton, match.state)


def _named(automaton: SuffixAutomaton, state: int) -> list[Following]:
    counts, latest = automaton.counts, automaton.latest
    seen = [
        (counts[after], latest[after], token)
        for token, after in tuple(automaton.next[state].items())
        if token != _BETWEEN
    ]
    seen.sort(reverse=True)
    left = sum(count for count, _, _ in seen)
    newest = max((position for _, position, _ in seen), default=0)
    named = list[Following]()
    for count, position, token in seen[: TUNING.copied]:
        left -= count
        named.append(Following(token, count, left, position == newest))
    return named
