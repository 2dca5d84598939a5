"""One client's sequence on the target: its committed tokens, what it waits for, and what was learned about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inference.accept import Verdict
from inference.backends import Model
from inference.errors import InvalidRequest, LimitExceeded
from inference.rows import Row
from inference.sampling import SamplingParams
from inference.scheduler import Survival
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class Answer(NamedTuple):
    """A verified tree. Seconds between asking and the forward, and in the forward; `budget`: nodes that the next tree may have, root included."""

    verdict: Verdict
    queue_seconds: float
    model_seconds: float
    budget: int


class Opened(NamedTuple):
    """A prefilled prompt: tokens whose keys were there already, seconds spent waiting and seconds of forwards."""

    reused: int
    queue_seconds: float
    prefill_seconds: float


def promise() -> Future[Any]:
    """A future that its holder cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class Opening:
    """Wants its prompt prefilled."""

    asked: float
    future: Future[Opened] = field(default_factory=promise)


@dataclass
class Round:
    """Wants a tree verified."""

    asked: float
    tree: TokenTree
    future: Future[Answer] = field(default_factory=promise)


@dataclass
class Generation:
    """Wants up to `left` tokens of the target alone; on_token(answer, last) hears of each, on the engine's thread."""

    asked: float
    left: int
    stop_ids: frozenset[int]
    on_token: Callable[[Answer, bool], None]
    future: Future[None] = field(default_factory=promise)


class Session:
    """State of a session; the engine alone changes it, under its lock.

    tokens: all committed ones; the last is the root of the next tree.  limit: tokens it may come to.
    row, sequence: where its keys are; None while it waits for a row.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        tenant: str,
        limit: int,
        most_nodes: int,
    ) -> None:
        self.tokens, self.params, self.tenant, self.limit = list(prompt), params, tenant, limit
        self.prompt_length = len(prompt)
        self.survival = Survival(most_nodes)
        self.work: Opening | Round | Generation | None = None
        self.row: Row | None = None
        self.sequence: ModelSequence | None = None
        self.reused, self.prefill_seconds = 0, 0.0
        self.closed: Exception | None = None
        self.detached = False  # nobody is there to ask for anything
        self._answered_at = 0.0
        self._pause = Pause()

    @property
    def root(self) -> int:
        return self.tokens[-1]

    @property
    def length(self) -> int:
        """Committed tokens, the root included."""
        return len(self.tokens)

    @property
    def live(self) -> ModelSequence:
        assert self.sequence is not None, "the session has no row"
        return self.sequence

    @property
    def missing(self) -> int:
        """Committed tokens below the root whose keys are not in the row."""
        return len(self.tokens) - 1 - self.live.cached

    @property
    def prefilled(self) -> bool:
        """It was opened and its prompt has its keys: that is still to be said."""
        return isinstance(self.work, Opening) and not self.missing

    @property
    def asked(self) -> float:
        """When it asked for what it waits for."""
        return 0.0 if self.work is None else self.work.asked

    @property
    def wants(self) -> int:
        """Nodes of the tree it waits for."""
        return len(self.work.tree) if isinstance(self.work, Round) else 1

    @property
    def kind(self) -> type[TokenTree]:
        """Of the tree it waits for, which says how it is verified (inference/verification.py)."""
        return type(self.work.tree) if isinstance(self.work, Round) else TokenTree

    @property
    def gain(self) -> float:
        """Tokens that its next tree is expected to bring, if it is like the last one."""
        return self._pause.tokens

    def check_room(self, tokens: int) -> None:
        """Raise unless so many tokens can follow."""
        if tokens < 1:
            raise InvalidRequest(f"max_tokens must be 1 or more: got {tokens}")
        if self.length + tokens > self.limit:
            have = f"{self.length} committed tokens and {tokens} new ones"
            raise LimitExceeded(f"{have} do not fit the sequence length of {self.limit}")

    def starts_on(self, row: Row, model: Model) -> None:
        self.row, self.reused = row, len(row.tokens)
        self.sequence = ModelSequence(model, row.index, self.params, row.slots)

    def leaves_row(self) -> None:
        self.row = self.sequence = None

    def next_tree(self, most: int) -> TokenTree:
        """The first `most` nodes of the tree it waits for."""
        if not isinstance(self.work, Round):
            return TokenTree.chain([self.root])
        return self.work.tree.prefix(most)

    def next_chunk(self, most: int) -> list[int]:
        start = self.live.cached
        return self.tokens[start : min(start + most, len(self.tokens) - 1)]

    def filled(self, chunk: TokenTree, seconds: float) -> None:
        """A part of the prompt has its keys."""
        self.live.commit(chunk, range(1, len(chunk)))
        self._remember(chunk.tokens.tolist())
        self.prefill_seconds += seconds

    def commits(self, tree: TokenTree, verdict: Verdict) -> None:
        """The root and the path have their keys; the target's own token is the next root."""
        path = tree.tokens[list(verdict.path)].tolist()
        self.live.commit(tree, verdict.path)
        self._remember([self.root, *path])
        self.tokens += [*path, verdict.next_token]
        self.survival.count(len(tree), verdict.path)

    def rewind(self, length: int) -> None:
        """Take back all but the first `length` tokens, of which the last is the root again."""
        del self.tokens[length:]
        if self.row is not None:
            self.row.keep(length - 1)
            self.sequence = ModelSequence(
                self.live.model, self.row.index, self.params, self.row.slots
            )

    def asks(self, work: Opening | Round | Generation) -> None:
        if self._answered_at:
            self._pause.count(work.asked - self._answered_at)
        self.work = work

    def answered(self, now: float, tokens: int) -> None:
        """Its request is done."""
        self.work, self._answered_at = None, now
        self._pause.tokens = float(tokens)

    def silent_for(self, now: float) -> float:
        """Seconds without a request; 0 while one is under way, endless while nobody is there."""
        if self.detached and self.work is None:
            return math.inf
        return now - self._answered_at if self.work is None and self._answered_at else 0.0

    def expected_in(self, now: float) -> float | None:
        """Seconds until it is likely to ask again; None when nothing is known, or it should have asked by now."""
        return self._pause.rest(now - self._answered_at) if self.work is None else None

    def _remember(self, tokens: Sequence[int]) -> None:
        assert self.row is not None
        self.row.tokens += tokens


class Pause:
    """How long a session takes between an answer and its next request: mean and mean deviation, newest rounds most."""

    def __init__(self) -> None:
        self._mean, self._deviation, self._rounds = 0.0, 0.0, 0
        self.tokens = 1.0

    def count(self, seconds: float) -> None:
        weight = max(0.2, 1 / (self._rounds + 1))
        self._deviation += (
            weight * (abs(seconds - self._mean) - self._deviation) if self._rounds else 0.0
        )
        self._mean += weight * (seconds - self._mean)
        self._rounds += 1

    def rest(self, passed: float) -> float | None:
        """What is left of a usual pause; a late one may take its deviation, then it is not waited for."""
        if self._rounds < 2:
            return None
        left = self._mean + self._deviation - passed
        return max(left, 0.0) if left > -self._deviation else None
