"""A client without a draft model: it knows the text beforehand and drafts it with mistakes, so that acceptance is set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.accept import Verdict
from inference.tree import TokenTree

ACCEPTED = (0, 2, 1, 4, 3, 1, 2, 3)
"""Expected tokens in the drafts of eight rounds: with the target's own token a round brings 3 on average."""

DEPTH = max(ACCEPTED)


class ScriptedDraft:
    """Drafts of the text that follows a prompt. A tree is a binary heap whose first children carry the expected tokens.

    text: prompt and continuation; turn: where in ACCEPTED to begin, so that clients differ.
    """

    def __init__(self, text: Sequence[int], prompt: int, vocabulary: int, turn: int = 0) -> None:
        self._text, self._prompt, self._vocabulary = np.array(text, dtype=np.int32), prompt, vocabulary
        self._at, self._turn = prompt - 1, turn

    @property
    def at_end(self) -> bool:
        """The text is too short for another draft."""
        return self._at + DEPTH + 1 >= len(self._text)

    def draft(self, root: int, nodes: int) -> TokenTree:
        """The next tree of this many nodes, under the token that was committed last. Not at_end."""
        every = np.arange(nodes)
        depths = np.floor(np.log2(every + 1)).astype(np.int32)
        right = (every == 2**depths - 1) & (depths <= ACCEPTED[self._turn % len(ACCEPTED)])
        expected = self._text[np.minimum(self._at + depths, len(self._text) - 1)]
        tokens = np.where(right, expected, (expected + every) % self._vocabulary)  # a node's number more: siblings stay distinct
        tokens[0] = root
        return TokenTree(tokens, np.where(every, (every - 1) // 2, -1))

    def commit(self, verdict: Verdict) -> None:
        """So many tokens are there now."""
        self._at += len(verdict.path) + 1
        self._turn += 1

    def restart(self) -> None:
        """Everything after the prompt was taken back."""
        self._at = self._prompt - 1
