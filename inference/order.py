"""What a client orders for its session, the session's progress, and why an output ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inference.errors import InvalidRequest

MIN_CREDIT, MAX_CREDIT, CREDIT_SECONDS = 64, 512, 2.0
"""The default credit: the tokens that the target generates in CREDIT_SECONDS, from MIN_CREDIT to
MAX_CREDIT. It applies if the client's order sets no credit.
"""


class Pace(Enum):
    """When the target runs a forward pass for a session."""

    GO_ON = 0  # whenever the target is free
    WAIT = 1  # only when the client sends Go


class End(Enum):
    """Reason why a session's output ends, or does not continue at this target."""

    NOT = 0  # the output continues
    STOP_ID = 1  # the target chose a stop id
    MAX_TOKENS = 2  # the length that the client ordered
    LIMIT = 4  # the session's maximum length
    DRAINED = 5  # the target shuts down; the client continues at another target
    CREDIT = 6  # only paused: the target waits for the client to acknowledge tokens
    EVICTED = 7  # only paused: the session lost its row and waits for another


@dataclass(frozen=True)
class Decode:
    """A client's order to decode up to a length. Raises InvalidRequest for impossible bounds.

    All bounds are absolute, so an order that is sent twice has no further effect.
    """

    end: int  # maximum length in tokens, prompt included
    stop_ids: frozenset[int] = frozenset()  # the output ends after the first of these
    pace: Pace = Pace.GO_ON
    credit: int = 0  # tokens the target may be ahead of the acknowledged length; 0: the default
    beside: bool = False  # the draft on the target's device also adds candidates

    def __post_init__(self) -> None:
        if self.end < 1:
            raise InvalidRequest(f"a text ends at a length of 1 or more: got {self.end}")


MIN_LOGPROB = -9999.0
"""Log-probability reported for an excluded token, and for any token less likely than this."""


class TokenLogProb(NamedTuple):
    """Log-probabilities of a token and of the most likely tokens at its position, best first."""

    value: float
    ids: tuple[int, ...]  # [likeliest]
    values: tuple[float, ...]  # [likeliest]


@dataclass
class Spent:
    """Costs of a session, or of some of its tokens."""

    nodes: int = 0  # nodes computed for the session, roots included
    forwards: int = 0  # forward passes in which the session took part
    lone: int = 0  # forward passes in which the session had no candidates
    queue_seconds: float = 0.0  # time spent waiting for forward passes
    model_seconds: float = 0.0  # time of the forward passes in which the session took part
    share_seconds: float = 0.0  # the session's part of model_seconds; a pass's parts add up to it

    @property
    def drafted(self) -> int:
        """Forward passes in which the session had candidates."""
        return self.forwards - self.lone

    @property
    def candidates(self) -> int:
        """Candidates computed for the session."""
        return self.nodes - self.forwards

    @property
    def pass_seconds(self) -> float:
        """Average seconds of a forward pass, including the wait for it."""
        return (self.model_seconds + self.queue_seconds) / max(self.forwards, 1)

    def add(self, costs: Spent) -> None:
        self.nodes += costs.nodes
        self.forwards += costs.forwards
        self.lone += costs.lone
        self.queue_seconds += costs.queue_seconds
        self.model_seconds += costs.model_seconds
        self.share_seconds += costs.share_seconds

    def beyond(self, before: Spent) -> Spent:
        """Return the costs since `before`, an earlier value of these costs."""
        return Spent(
            self.nodes - before.nodes,
            self.forwards - before.forwards,
            self.lone - before.lone,
            self.queue_seconds - before.queue_seconds,
            self.model_seconds - before.model_seconds,
            self.share_seconds - before.share_seconds,
        )


@dataclass(kw_only=True)
class Progress(Spent):
    """The tokens after a reader's cursor, their costs, and the state of the target."""

    position: int = 0  # position of the first of `tokens` in the sequence, prompt included
    tokens: tuple[int, ...] = ()
    proposers: tuple[int, ...] = ()  # [tokens] kind of the proposer of each, or NOBODY
    logprobs: tuple[TokenLogProb, ...] = ()  # [tokens] if requested
    end: End = End.NOT
    known: int = 0  # nodes of the reader's stream that had arrived when the last pass began
    held: int = 0  # number of candidates below the root
    room: int = 0  # maximum candidates of this session in a forward pass at present


class Opened(NamedTuple):
    """Reply to the opening of a session: the prompt is prefilled, and decoding may begin."""

    reused_tokens: int = 0  # prompt tokens whose keys were in the prefix cache
    queue_seconds: float = 0.0  # time spent waiting for a row and for forward passes
    prefill_seconds: float = 0.0  # time of the prompt's forward passes
    logprobs: tuple[TokenLogProb, ...] = ()  # of the prompt's tokens but the first, if requested
