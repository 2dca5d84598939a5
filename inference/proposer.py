"""The interface of all proposers: a local model, copied text, a draft on the target's device. None
waits for another proposer or for the target. Pure: no model, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference.order import Progress
from inference.sampling import SamplingParams

MODEL, COPY, COLOCATED = range(3)
"""Kinds of proposers: a local model, copied text, a draft on the target's device."""

NOBODY = 255
"""Kind recorded for a token that no proposer had proposed."""


MAX_CANDIDATES = 1024
"""Maximum candidates of a session; beyond it the least valuable are dropped."""

FRAMING_BYTES = 88
"""Estimated bytes of framing per message: gRPC prefix 5, HTTP/2 frame 9, TLS 1.3 record 22, and
TCP (with time stamps) and IPv4 headers 52. Messages that leave together share some of them. TCP
acknowledgements are not counted.
"""

NODE_BYTES, MESSAGE_BYTES = 5.0, 15.0 + FRAMING_BYTES
"""Bytes sent to the target for each node, and for each message that carries nodes."""


class Nodes(NamedTuple):
    """A proposer's message with candidates, in columns. Losing it costs speed and never changes the
    output. Nodes of a stream are numbered consecutively; numbers are never reused.
    """

    base: int  # position of a committed token
    first: int  # number of the first node; the others are numbered consecutively
    parents: Sequence[int]  # [n] node's number minus its parent's; 0: child of the token at `base`
    tokens: Sequence[int]  # [n]
    chances: Sequence[float]  # [n] claimed probability of the edge, given the parent
    proposer: int = 0  # kind of the proposer

    @property
    def end(self) -> int:
        """The number of the last node plus one."""
        return self.first + len(self.tokens)


class DraftUsage(NamedTuple):
    """Work of a proposer's model."""

    calls: int = 0  # forward passes of the draft, without those that prefill the prompt
    nodes: int = 0  # nodes computed in these passes
    seconds: float = 0.0  # duration of these passes

    def plus(self, usage: DraftUsage) -> DraftUsage:
        return DraftUsage(
            self.calls + usage.calls, self.nodes + usage.nodes, self.seconds + usage.seconds
        )


class Proposer(Protocol):
    """A source of candidates for one request at a time."""

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """Begin a request, without running the draft. end: maximum length, prompt included."""
        ...

    def on_progress(self, progress: Progress, now: float) -> None:
        """Process committed tokens that arrived at `now` (seconds). Raises ValueError if tokens
        are missing.
        """
        ...

    def on_new_stream(self) -> None:
        """Mark all candidates as unsent, because the target has lost them."""
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
        """End the request, and free its resources."""
        ...
