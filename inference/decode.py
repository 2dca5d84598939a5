"""The loop: draft a tree, let the target verify it, commit, repeat.

Knows nothing of text, stop conditions, clocks, devices or networks; the caller stops by leaving the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from inference.accept import Verdict
from inference.errors import OutriderError
from inference.policy import Budget, Policy
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.tree import TokenTree


class Superseded(OutriderError):
    """A round that was sent ahead has no verdict: the one before it came out otherwise."""


def never() -> bool:
    """Goes on to the end."""
    return False


class Verifier(Protocol):
    """The target's side of one session, in process or behind a network."""

    @property
    def traffic(self) -> Traffic:
        """What the session has cost so far."""
        ...

    @property
    def tree_budget(self) -> int:
        """Nodes that the next tree may have, the root included; more would be cut off."""
        ...

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        """Start the session and prefill; the future fails when the session is refused."""
        ...

    def submit(self, tree: TokenTree, assumed: Sequence[int] | None = None) -> Future[Verdict]:
        """Verify a tree whose root is the last committed token.

        assumed: the tokens that the round submitted last is expected to commit, the root among them, where its verdict is still under
        way. When it commits others, the future fails with Superseded, and nothing has been verified.
        """
        ...

    def generate(
        self,
        max_tokens: int,
        stop_ids: frozenset[int],
        *,
        fused: bool = False,
        policy: Policy | None = None,
        enough: Callable[[], bool] = never,
    ) -> Iterator[int]:
        """Let the target go on from here, alone or (fused) with the draft beside it; a stop id is yielded and ends it.

        policy: how that draft grows its trees (None: as the target's host is set).  enough: asked after each token; once it says so the
        target is told to end, and what it has made by then still comes.
        Raises InvalidRequest where there is no draft beside it.
        """
        ...

    def close(self) -> None: ...


class Drafter(Protocol):
    """The draft's side of one session."""

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None: ...

    def draft(self, root: int, budget: Budget) -> TokenTree:
        """A tree under `root` within the budget."""
        ...

    def ahead(self) -> bool:
        """Prepare for the likeliest outcomes of the tree last drafted: one call of the draft model at most, False when none is worth it."""
        ...

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        """Keep the accepted path of the tree last drafted, forget the rest."""
        ...

    def close(self) -> None: ...


class Step(NamedTuple):
    """One round: the tree that was sent and what became of it.

    stretch: the architecture that made this token by itself between rounds (inference/adaptive.py); None for a round.
    """

    tree: TokenTree
    verdict: Verdict
    stretch: str | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens this round commits: the accepted ones, then the target's own."""
        return [*self.tree.tokens[list(self.verdict.path)].tolist(), self.verdict.next_token]


def decode(
    prompt: Sequence[int],
    params: SamplingParams,
    drafter: Drafter,
    verifier: Verifier,
    max_new_tokens: int,
) -> Iterator[Step]:
    """Rounds whose tokens, put together, are the first `max_new_tokens` of the target's own seeded decoding."""
    opened = verifier.open(prompt, params)
    drafter.open(prompt, params)
    opened.result()
    root, remaining = prompt[-1], max_new_tokens
    while remaining > 0:
        tree = drafter.draft(root, Budget(verifier.tree_budget - 1, remaining - 1))
        verdict = verdict_of(verifier.submit(tree), drafter)
        drafter.commit(tree, verdict)
        step = Step(tree, verdict)
        root, remaining = verdict.next_token, remaining - len(step.tokens)
        yield step


def verdict_of(pending: Future[Verdict], drafter: Drafter) -> Verdict:
    """Wait for the verdict; the draft prepares for what it may be meanwhile, on this thread, which has nothing else to do."""
    while not pending.done() and drafter.ahead():
        pass
    return pending.result()
