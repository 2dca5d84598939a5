"""Clients without a draft model: they know the text beforehand and draft it with mistakes, so that acceptance is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inference.accept import Verdict
from inference.backends import Model
from inference.engine import Engine
from inference.sampling import SamplingParams
from inference.session import Answer
from inference.tree import TokenTree

ACCEPTED = (0, 2, 1, 4, 3, 1, 2, 3)
"""Expected tokens in the drafts of eight rounds: with the target's own token a round brings 3 on average."""

DEPTH = max(ACCEPTED)


class Text(NamedTuple):
    """A prompt of so many tokens and what the target says after it."""

    tokens: list[int]
    prompt: int


def say_texts(
    model: Model, prompts: Sequence[list[int]], length: int, vocabulary: int
) -> list[Text]:
    """What the model says alone, greedily, until prompt and continuation are `length` tokens. One row each."""
    engine = Engine(model, sequence_length=length, max_tree_nodes=1, vocabulary=vocabulary)
    said = [list(prompt) for prompt in prompts]
    for tokens in said:
        session, opened = engine.open(tokens, SamplingParams())
        engine.finish(opened)

        def hear(answer: Answer, last: bool, tokens: list[int] = tokens) -> None:
            tokens.append(answer.verdict.next_token)

        engine.finish(engine.generate(session, length - len(tokens), frozenset(), hear))
        engine.close(session)
    return [Text(tokens, len(prompt)) for tokens, prompt in zip(said, prompts, strict=True)]


class ScriptedDraft:
    """Drafts of a text. A tree is a binary heap whose first children carry the expected tokens.

    turn: where in ACCEPTED to begin, so that clients differ.
    """

    def __init__(self, text: Text, vocabulary: int, turn: int = 0) -> None:
        self._text, self._prompt, self._vocabulary = (
            np.array(text.tokens, dtype=np.int32),
            text.prompt,
            vocabulary,
        )
        self._at, self._turn = text.prompt - 1, turn

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
        tokens = np.where(
            right, expected, (expected + every) % self._vocabulary
        )  # a node's number more: siblings stay distinct
        tokens[0] = root
        return TokenTree(tokens, np.where(every, (every - 1) // 2, -1))

    def commit(self, verdict: Verdict) -> None:
        """So many tokens are there now."""
        self._at += len(verdict.path) + 1
        self._turn += 1

    def restart(self) -> None:
        """Everything after the prompt was taken back."""
        self._at = self._prompt - 1
