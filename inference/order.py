"""A client's order for its session, the session's progress, and why a text ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inference.errors import InvalidRequest

MIN_CREDIT, MAX_CREDIT, CREDIT_SECONDS = 64, 512, 2.0
"""The default credit: the tokens that the target generates in CREDIT_SECONDS, within two bounds.

It applies where the client's order has no credit of its own.
"""


class Pace(Enum):
    """When the target runs a forward pass for a session."""

    GO_ON = 0  # whenever the target is free
    WAIT = 1  # only when the client sends Go


class End(Enum):
    """Reason why a session's text ends, or does not continue here."""

    NOT = 0  # the text continues
    STOP_ID = 1  # the target chose a stop id
    MAX_TOKENS = 2  # the length that the client ordered
    LIMIT = 4  # the session's maximum length
    DRAINED = 5  # the target stops; the client continues elsewhere
    CREDIT = 6  # no end: the target waits for the client to acknowledge tokens
    EVICTED = 7  # no end: the session lost its row and waits for another


@dataclass(frozen=True)
class Decode:
    """A client's order: decode up to a length. Raises InvalidRequest for impossible bounds.

    All bounds are absolute, so repeating an order repeats no work.
    """

    end: int  # length in tokens, prompt included, at which the text ends
    stop_ids: frozenset[int] = frozenset()  # the text ends after the first of these
    pace: Pace = Pace.GO_ON
    credit: int = 0  # tokens the target may be ahead of the acknowledged length; 0: the default
    beside: bool = False  # the draft beside the target also appends candidates

    def __post_init__(self) -> None:
        if self.end < 1:
            raise InvalidRequest(f"a text ends at a length of 1 or more: got {self.end}")


MIN_LOGPROB = -9999.0
"""Log-probability of a token that a rule excludes, and of any that is less likely."""


class TokenLogProb(NamedTuple):
    """A token's log-probability, and those of the most likely tokens in its place, best first."""

    value: float
    ids: tuple[int, ...]  # [likeliest]
    values: tuple[float, ...]  # [likeliest]


@dataclass
class Spent:
    """Costs of a session, or of a part of its text."""

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
        """Candidates that were computed."""
        return self.nodes - self.forwards

    @property
    def pass_seconds(self) -> float:
        """Average time of a forward pass and of waiting for it."""
        return (self.model_seconds + self.queue_seconds) / max(self.forwards, 1)

    def add(self, costs: Spent) -> None:
        self.nodes += costs.nodes
        self.forwards += costs.forwards
        self.lone += costs.lone
        self.queue_seconds += costs.queue_seconds
        self.model_seconds += costs.model_seconds
        self.share_seconds += costs.share_seconds

    def beyond(self, before: Spent) -> Spent:
        """The costs since `before`, an earlier state of them."""
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
    """The text beyond a reader's cursor, its costs, and the state of the target."""

    position: int = 0  # position of the first of `tokens` in the text
    tokens: tuple[int, ...] = ()
    proposers: tuple[int, ...] = ()  # [tokens] kind of the proposer of each, or NOBODY
    logprobs: tuple[TokenLogProb, ...] = ()  # [tokens] if requested
    end: End = End.NOT
    known: int = 0  # nodes of the reader's stream that had arrived when the last pass began
    held: int = 0  # candidates below the root now
    room: int = 0  # candidates of this session that fit into a forward pass at present


class Opened(NamedTuple):
    """The prompt is prefilled and the session may decode."""

    reused_tokens: int = 0  # prompt tokens whose keys were in the prefix cache
    queue_seconds: float = 0.0  # time spent waiting for a row and for forward passes
    prefill_seconds: float = 0.0  # time of the prompt's forward passes
    logprobs: tuple[TokenLogProb, ...] = ()  # of the prompt's tokens but the first, if requested
