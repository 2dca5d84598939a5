"""A client's order for its session, the session's progress, and why a text ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inference.errors import InvalidRequest

LEAST_CREDIT, MOST_CREDIT, CREDIT_SECONDS = 64, 512, 2.0
"""The default credit: the tokens that the target makes in CREDIT_SECONDS, within the two bounds.

It applies where the client's order names no credit of its own.
"""


class Pace(Enum):
    """Condition on which the target makes a forward for a session."""

    GO_ON = 0  # whenever the target is free
    WAIT = 1  # only when the client says go


class End(Enum):
    """Reason for which a session's text ends, or does not go on here."""

    NOT = 0  # the text goes on
    STOP_ID = 1  # the target chose a stop id
    MAX_TOKENS = 2  # the length that the client ordered
    LIMIT = 4  # the session's greatest length
    DRAINED = 5  # the target stops; the client goes on elsewhere
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


LEAST_LOGPROB = -9999.0
"""Log-probability of a token that a rule excludes, and of any that is less likely."""


class TokenLogProb(NamedTuple):
    """A token's log-probability, and those of the likeliest tokens in its place, best first."""

    value: float
    ids: tuple[int, ...]  # [likeliest]
    values: tuple[float, ...]  # [likeliest]


class Progress(NamedTuple):
    """Tokens committed beyond a reader's cursor, and counts. Sums are over the whole session."""

    position: int  # position of the first of `tokens` in the text
    tokens: tuple[int, ...]
    proposers: tuple[int, ...]  # [tokens] kind of the proposer that had named each, or NOBODY
    known: int  # nodes of the reader's stream that had arrived when the last forward began
    held: int  # candidates below the root now
    acknowledged: int  # length that the target knows the client to have
    nodes: int  # nodes computed for the session, roots included
    forwards: int  # forwards in which the session took part
    lone: int  # forwards in which the session had no candidates
    queue_seconds: float  # time spent waiting for forwards
    model_seconds: float  # time of the forwards in which the session took part
    share_seconds: float  # the session's part of model_seconds; a forward's parts add up to it
    sessions: int  # sessions in the last forward
    room: int  # candidates that a forward takes from this session at present
    end: End
    logprobs: tuple[TokenLogProb, ...] = ()  # [tokens] where they were asked for


class Opened(NamedTuple):
    """The prompt is prefilled and the session may decode."""

    reused: int  # prompt tokens whose keys were in the prefix cache
    queue_seconds: float  # time spent waiting for a row and for forwards
    prefill_seconds: float  # time of the prompt's forwards
    logprobs: tuple[TokenLogProb, ...] = ()  # of the prompt's tokens but the first, where asked for


@dataclass
class Spent:
    """Costs of a session so far. The fields have the same meaning as in Progress."""

    nodes: int = 0
    forwards: int = 0
    lone: int = 0
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    share_seconds: float = 0.0
    sessions: int = 0

    def add(self, nodes: int, queue: float, model: float, share: float, sessions: int) -> None:
        """Count a forward: the session's nodes in it, and seconds waited, computed and charged."""
        self.nodes += nodes
        self.forwards += 1
        self.lone += nodes == 1
        self.queue_seconds += queue
        self.model_seconds += model
        self.share_seconds += share
        self.sessions = sessions
