"""Sources of text that proposers copy, and the children that they name in a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Protocol

from inference.drafters.draft_rule import DraftRule
from inference.drafters.draft_tree import DraftNode, Named
from inference.planner.acceptance import AcceptanceModel
from inference.planner.child_features import Following, copy_features


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

    def __init__(self, source: TextSource, learned: AcceptanceModel) -> None:
        self._source, self._learned = source, learned

    def open(self, prompt: Sequence[int], rule: DraftRule) -> None:
        """Begin a text. What its rule excludes is not copied."""
        self._rule = rule
        self._source.open(prompt)

    def close(self) -> None:
        """End the text."""
        self._source.close()

    def name(self, node: DraftNode) -> Named | None:
        """Return the children that followed the same words before, if some did."""
        length, following = self._source.following(self._context(node))
        allowed = self._rule.allows(node, [one.token for one in following])
        following = list(compress(following, allowed))
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
