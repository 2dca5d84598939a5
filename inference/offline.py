"""The loop for a target that may be away: the draft goes on alone, and what it made is verified and corrected later."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple, Protocol

from inference.accept import Verdict
from inference.decode import Drafter, Step, Verifier
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.tree import TokenTree

AWAY_SECONDS = 10.0
"""A target that does not answer for so long is away, even if its link seems to be there."""

_LOOK_SECONDS = 0.1


class LinkedVerifier(Verifier, Protocol):
    """A Verifier whose link can break and come back; its futures wait for that."""

    @property
    def lost(self) -> bool:
        """The target is being looked for."""
        ...


class Unverified(NamedTuple):
    """A token that the draft went on with alone. Steps that come later say what is true from before the first of these on."""

    token: int


def decode_offline(
    prompt: Sequence[int],
    params: SamplingParams,
    drafter: Drafter,
    verifier: LinkedVerifier,
    max_new_tokens: int,
    stop_ids: frozenset[int],
) -> Iterator[Step | Unverified]:
    """decode(), and the draft's own tokens while the target is away; the Steps alone are the target's own seeded decoding."""
    opened = verifier.open(prompt, params)
    drafter.open(prompt, params)
    opened.result()
    made: list[int] = []
    guess: list[int] = []  # made alone, after `made`
    while len(made) < max_new_tokens:
        root = [*prompt, *made][-1]
        budget = Budget(verifier.tree_budget - 1, max_new_tokens - len(made) - 1)
        tree = (
            TokenTree.chain([root, *guess[: min(budget)]]) if guess else drafter.draft(root, budget)
        )
        future = verifier.submit(tree)
        if not guess and _away(future, verifier):
            for token in _alone(root, drafter, future, max_new_tokens - len(made), stop_ids):
                guess.append(token)
                yield Unverified(token)
            drafting = False
        else:
            drafting = not guess
        step = Step(tree, future.result())
        made += step.tokens
        yield step
        if drafting:
            drafter.commit(tree, step.verdict)
            continue
        right = guess[: len(step.tokens)] == list(step.tokens)
        guess = guess[len(step.tokens) :] if right else []
        if not guess:
            drafter.open([*prompt, *made], params)


def _away(future: Future[Verdict], verifier: LinkedVerifier) -> bool:
    """Wait for the answer, or until it is clear that it will not come soon."""
    deadline = time.monotonic() + AWAY_SECONDS
    while not wait([future], _LOOK_SECONDS).done:
        if verifier.lost or time.monotonic() > deadline:
            return True
    return False


def _alone(
    root: int, drafter: Drafter, future: Future[Verdict], most: int, stop_ids: frozenset[int]
) -> Iterator[int]:
    """The draft's own decoding, until the target answers, `most` tokens are made, or the text ends."""
    for _ in range(most):
        tree = drafter.draft(root, Budget(1, 1))
        if future.done() or len(tree) == 1:
            return
        root = int(tree.tokens[1])
        drafter.commit(tree, Verdict((), root))
        yield root
        if root in stop_ids:
            return
