"""The interface of all proposers: a local model, copied text, a draft beside the target.

Any number of proposers serve a text. None of them waits for another or for the target. Each gets
the committed tokens, works while that is worth its time, and returns candidates that are worth
sending. Pure: no model, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference.order import Progress
from inference.sampling import SamplingParams

MODEL, COPY, COLOCATED = range(3)
"""Kinds of proposers: a local model, copied text, a draft beside the target."""

NOBODY = 255
"""Kind of a token that no proposer had proposed: the target generated it alone."""


MOST_CANDIDATES = 1024
"""Maximum candidates of a session; the least valuable are dropped first."""

FRAMING_BYTES = 88
"""Estimated bytes of framing per message: gRPC prefix 5, HTTP/2 frame 9, TLS 1.3 record 22, and
TCP (with time stamps) and IPv4 headers 52. Messages that leave together share some of them. TCP
acknowledgements are not counted.
"""

NODE_BYTES, MESSAGE_BYTES = 5.0, 15.0 + FRAMING_BYTES
"""Bytes on the way to the target: of a node, and of a message that carries nodes."""


class Nodes(NamedTuple):
    """A proposer's message, in columns. It is a hint: losing it costs speed and never changes the
    text. Numbers of a stream grow by one and are never reused.
    """

    base: int  # position of a committed token
    first: int  # number of the first node; the next ones follow
    parents: Sequence[int]  # [n] how many numbers before its child's; 0: the token at `base`
    tokens: Sequence[int]  # [n]
    chances: Sequence[float]  # [n] claimed probability of the edge, given the parent
    proposer: int = 0  # kind of the proposer

    @property
    def end(self) -> int:
        """The number after the last node's."""
        return self.first + len(self.tokens)


class DraftUsage(NamedTuple):
    """Work of a proposer's model."""

    calls: int = 0  # parts of the prompt not counted
    nodes: int = 0  # in these calls
    seconds: float = 0.0  # of these calls

    def plus(self, other: DraftUsage) -> DraftUsage:
        return DraftUsage(
            self.calls + other.calls, self.nodes + other.nodes, self.seconds + other.seconds
        )


class Proposer(Protocol):
    """A source of candidates for one text at a time."""

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """Begin a text; makes no call. end: maximum length in tokens."""
        ...

    def on_progress(self, progress: Progress, now: float) -> None:
        """Process committed tokens, which arrived at `now`, in seconds. Raises ValueError for a
        gap.
        """
        ...

    def on_new_stream(self) -> None:
        """Send candidates again: the target has lost all that were sent."""
        ...

    def work(self, now: float) -> DraftUsage | None:
        """Prefill a part of the prompt, or run one forward pass of the draft. Return None if
        neither is worth its time.
        """
        ...

    def flush(self, now: float, first: int) -> Nodes | None:
        """Return unsent candidates that are worth sending now. Call it until it returns None.

        first: the next node number of the stream
        """
        ...

    def close(self) -> None:
        """End the text, and free its resources."""
        ...
