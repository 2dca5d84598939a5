"""The seam to whoever proposes candidates: a model here, copied text, a drafter beside the target.

Any number of proposers serve one text at a time. None of them waits for another or for the target:
each hears what was committed, works while that is worth it, and hands over what is worth sending.
Pure: no model, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from inference.candidates import Nodes
from inference.sampling import SamplingParams

MODEL, COPY, HOST, DEVICE = range(4)
"""Kinds of proposers: a model here, copied text, a drafter beside the target, a second device."""

NOBODY = 255
"""In place of a kind: the target made this token itself."""


class Notice(NamedTuple):
    """What came with committed tokens.

    at: when they arrived, by the client's clock.  model_seconds: of the target's last forward.
    known: nodes of our stream that had arrived when it began.  held: live candidates below the new
    root.  room: nodes that a forward has for this session at present.
    """

    at: float
    model_seconds: float
    known: int
    held: int
    room: int


class Proposer(Protocol):
    """One source of candidates for one text."""

    @property
    def kind(self) -> int: ...

    @property
    def calls(self) -> int:
        """Of a model, for all texts so far."""
        ...

    @property
    def drafting(self) -> float:
        """Seconds in these calls."""
        ...

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """A text begins. end: length (prompt and output) beyond which no token is wanted."""
        ...

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        """The target has committed these, the first of them at `position`."""
        ...

    def work(self, now: float) -> bool:
        """Make at most one call of a model; False when none is worth it now."""
        ...

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        """What is worth sending now and was not sent; next_number gives the numbers of a stream."""
        ...

    def resend(self) -> None:
        """The target has lost what was sent: all of it that is still of use counts as unsent."""
        ...

    def path(self, most: int) -> list[int]:
        """Its own likeliest continuation of the committed text, up to so many tokens."""
        ...

    def close(self) -> None: ...
