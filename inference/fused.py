"""Draft and target on one host: a text made by both in this process, or by the target alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference.accept import Verdict
from inference.decode import Drafter, decode
from inference.local import LocalVerifier
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.tree import TokenTree


class Round(NamedTuple):
    """What one pass of the target brought: its tokens, and how many nodes had been drafted for it."""

    tokens: tuple[int, ...]
    drafted: int


class StopwatchDrafter:
    """A Drafter that adds up the seconds spent in another one: before a tree was sent, and (ahead_seconds) while its verdict was awaited."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.seconds, self.ahead_seconds = drafter, 0.0, 0.0

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._drafter.open(prompt, params)

    def draft(self, root: int, budget: Budget) -> TokenTree:
        start = time.perf_counter()
        tree = self._drafter.draft(root, budget)
        self.seconds += time.perf_counter() - start
        return tree

    def ahead(self) -> bool:
        start = time.perf_counter()
        going_on = self._drafter.ahead()
        self.ahead_seconds += time.perf_counter() - start
        return going_on

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._drafter.commit(tree, verdict)

    def close(self) -> None:
        self._drafter.close()


def fused_rounds(
    prompt: Sequence[int],
    params: SamplingParams,
    drafter: Drafter,
    verifier: LocalVerifier,
    max_tokens: int,
    stop_ids: frozenset[int],
) -> Iterator[Round]:
    """The target's own seeded decoding, several tokens a round; a stop id is part of it and ends it.

    With a ClassicDrafter it is a text of the same distribution instead, where the temperature is above 0.
    """
    for step in decode(prompt, params, drafter, verifier, max_tokens):
        tokens = _until_stop(step.tokens, stop_ids)
        yield Round(tokens, len(step.tree) - 1)
        if tokens[-1] in stop_ids:
            return


def target_rounds(
    prompt: Sequence[int],
    params: SamplingParams,
    verifier: LocalVerifier,
    max_tokens: int,
    stop_ids: frozenset[int],
) -> Iterator[Round]:
    """The same by the target alone, a token a round."""
    verifier.open(prompt, params).result()
    for token in verifier.generate(max_tokens, stop_ids):
        yield Round((token,), 0)


def _until_stop(tokens: Sequence[int], stop_ids: frozenset[int]) -> tuple[int, ...]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tuple(tokens[: index + 1])
    return tuple(tokens)
