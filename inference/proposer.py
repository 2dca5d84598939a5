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


class Usage(NamedTuple):
    """Work of a proposer's model."""

    calls: int = 0  # parts of the prompt not counted
    nodes: int = 0  # in these calls
    seconds: float = 0.0  # of these calls

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls, self.nodes + other.nodes, self.seconds + other.seconds
        )


class Proposer(Protocol):
    """One source of candidates for one text at a time."""

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """Begin a text; no call is made. end: length in tokens at which it ends at the latest."""
        ...

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice | None) -> None:
        """Take in what the target has committed: `tokens`, the first of them at `position`.

        now: seconds
        notice: None where the stream broke: the target holds nothing that was sent before
        """
        ...

    def work(self, now: float) -> Usage | None:
        """Feed the model a part of the prompt, or make a call; None when no call is worth it."""
        ...

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        """Hand over unsent candidates that are worth sending now. To be asked until it is None.

        next_number: gives the next node number of the stream.
        """
        ...

    def close(self) -> None:
        """End the text, and free what it held."""
        ...
