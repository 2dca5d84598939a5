"""What an acceptance model learns from: a draft's ranking of each token of the target's texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.own_texts import Text
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.tree import TokenTree

WIDTH = 16
"""Ranks that are looked at: no tree has wider nodes."""

CHUNK = 32  # nodes of one call of the draft


@dataclass(frozen=True)
class Agreement:
    """A draft's ranking of each token of a text.

    ids: the draft's likeliest tokens
    scores: as the drafter sees them: log-probabilities at temperature 0, else perturbed
    taken: rank of the target's token, WIDTH where it has none
    """

    text: Text
    ids: NDArray[np.int32]  # [n, WIDTH]
    scores: NDArray[np.float32]  # [n, WIDTH]

    @property
    def temperature(self) -> float:
        return round(self.text.params.temperature, 6)  # sampling rounds it to float32

    @property
    def greedy(self) -> bool:
        return self.text.params.greedy

    @property
    def taken(self) -> NDArray[np.int64]:  # [n]
        right = self.ids == np.array(self.text.tokens)[:, None]
        return np.where(right.any(axis=1), right.argmax(axis=1), WIDTH)


def read_text(draft: Model, text: Text) -> Agreement:
    """Rank the tokens of a text with a draft, under the text's own noise."""
    sequence = ModelSequence(draft, 0, text.params)
    sequence.extend(text.prompt[:-1])
    roots = [text.prompt[-1], *text.tokens[:-1]]
    ranked = [_rank(sequence, roots[at : at + CHUNK]) for at in range(0, len(roots), CHUNK)]
    ids, scores = (np.concatenate(part) for part in zip(*ranked, strict=True))
    return Agreement(text, ids.astype(np.int32), scores.astype(np.float32))


def _rank(
    sequence: ModelSequence, tokens: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    chain = TokenTree.chain(tokens)
    ranked = sequence.rank(chain, range(len(chain)), WIDTH)
    sequence.commit(chain, range(1, len(chain)))
    return ranked.ids, ranked.scores
