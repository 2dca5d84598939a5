"""An arm, which makes texts with one engine in one setting, and what is measured of a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Hear = Callable[[Sequence[int]], None]
"""Takes the ids of new tokens as soon as the engine hands them over."""


class Told(NamedTuple):
    """Figures that an engine tells. passes: of the target, after the first tokens came."""

    tokens: int
    passes: int


Play = Callable[[Sequence[int], int, Hear], Told]
"""Makes at most so many tokens after a prompt of these ids, greedily."""


def nothing() -> None:
    """An engine that keeps nothing from text to text needs no preparation."""


class Arm(NamedTuple):
    """One way of making texts.

    threads: of this process, while the arm plays
    forget: makes the engine forget the last prompt; not timed
    """

    name: str
    threads: int
    play: Play
    forget: Callable[[], None] = nothing


class Made(NamedTuple):
    """A text that an arm made. Seconds count from the request, which includes the prompt.

    tokens: of the text; more than there are ids where the engine held some back
    first: tokens that came first, together, after first_seconds
    passes: of the target, after the first tokens
    """

    ids: list[int]
    tokens: int
    first: int
    first_seconds: float
    seconds: float
    passes: int

    @property
    def token_seconds(self) -> float | None:
        """Seconds a token from the first tokens on; None where all came at once."""
        later = self.tokens - self.first
        return (self.seconds - self.first_seconds) / later if later else None

    @property
    def whole_token_seconds(self) -> float:
        """Seconds a token from the request on."""
        return self.seconds / self.tokens


class Stopwatch:
    """Notes when tokens come."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, clock()
        self._came: list[tuple[float, list[int]]] = []

    def hear(self, ids: Sequence[int]) -> None:
        self._came.append((self._clock() - self._began, list(ids)))

    def made(self, told: Told) -> Made:
        """The text as it was heard. Raises ValueError where nothing came."""
        if not self._came:
            raise ValueError("an arm made no token")
        (first_seconds, first), (seconds, _) = self._came[0], self._came[-1]
        ids = [token for _, tokens in self._came for token in tokens]
        return Made(ids, told.tokens, len(first), first_seconds, seconds, told.passes)


def make(arm: Arm, prompt: Sequence[int], tokens: int) -> Made:
    """Let an arm make a text."""
    arm.forget()
    torch.set_num_threads(arm.threads)
    watch = Stopwatch()
    return watch.made(arm.play(prompt, tokens, watch.hear))
