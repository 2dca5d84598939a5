"""The interface of all proposers: a local model, copied text, a draft beside the target.

Any number of proposers serve one text. None of them waits for another or for the target. Each hears
which tokens were committed, works while that is worth its time, and hands over candidates that are
worth sending. Pure: no model, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from inference.candidates import Nodes
from inference.sampling import SamplingParams

MODEL, COPY, COLOCATED, DEVICE = range(4)
"""Kinds of proposers: a local model, copied text, a draft beside the target, a second device."""

NOBODY = 255
"""Stands for a kind where no proposer had named the token: the target made it alone."""


class Notice(NamedTuple):
    """Facts about the target that arrive with committed tokens."""

    at: float  # when the tokens arrived, in seconds of the client's clock
    model_seconds: float  # time of the target's last forward
    known: int  # nodes of our stream that had arrived when that forward began
    held: int  # live candidates below the new root
    room: int  # candidates that a forward takes from this session at present


class Proposer(Protocol):
    """One source of candidates for one text."""

    @property
    def kind(self) -> int: ...

    @property
    def calls(self) -> int:
        """Calls of the proposer's model, over all texts so far."""
        ...

    @property
    def drafting(self) -> float:
        """Seconds spent in the calls of the proposer's model."""
        ...

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """A text begins; no call is made. end: length in tokens at which it ends at the latest."""
        ...

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        """The target has committed `tokens`, the first of them at `position`. now: seconds."""
        ...

    def work(self, now: float) -> bool:
        """Feed the model a part of the prompt, or make a call; False when no call is worth it."""
        ...

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        """Unsent candidates that are worth sending now, or None. To be asked until it is None.

        next_number: gives the next node number of the stream.
        """
        ...

    def resend(self) -> None:
        """Mark all candidates as unsent, because the target has lost them."""
        ...

    def close(self) -> None: ...
