"""What a client wants of its session, how far the target has come, and why it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inference.errors import InvalidRequest

LEAST_CREDIT, MOST_CREDIT, CREDIT_SECONDS = 64, 512, 2.0
"""A target is ahead of the acknowledged length by what it makes in so many seconds, within these
bounds, where the client asks for no other credit.
"""


class Pace(Enum):
    """When the target makes a forward for a session."""

    GO_ON = 0  # whenever it is free
    WAIT = 1  # only when it is told to go


class End(Enum):
    """Why a session's text ends, or does not go on here."""

    NOT = 0
    STOP_ID = 1
    MAX_TOKENS = 2
    SPENT = 3  # all nodes that the client pays for are computed
    LIMIT = 4  # the session's greatest length
    DRAINED = 5  # the target stops: the client goes on elsewhere
    CREDIT = 6  # the client has not acknowledged what it was sent
    EVICTED = 7


@dataclass(frozen=True)
class Decode:
    """Let the target decode up to a length. All bounds are absolute: said twice, nothing is made
    twice.

    end: length of the text, prompt included, at which it ends.
    stop_ids: the text ends behind the first of these.
    most_nodes: nodes computed for the session in all, roots included; 0: no limit.
    tokens_per_second: the target goes no faster; 0: no limit.
    credit: tokens that the target may be ahead of the acknowledged length; 0: its own rule.
    beside: the proposer beside the target appends candidates, too.
    """

    end: int
    stop_ids: frozenset[int] = frozenset()
    most_nodes: int = 0
    tokens_per_second: float = 0.0
    pace: Pace = Pace.GO_ON
    credit: int = 0
    beside: bool = False

    def __post_init__(self) -> None:
        if self.end < 1:
            raise InvalidRequest(f"a text ends at a length of 1 or more: got {self.end}")
        if not 0 <= self.tokens_per_second < float("inf"):
            raise InvalidRequest(
                f"tokens_per_second is a rate, 0 for none: got {self.tokens_per_second}"
            )


class Progress(NamedTuple):
    """What the target has committed beyond a reader's cursor. Sums are over the whole session."""

    position: int  # of the first of `tokens`
    tokens: tuple[int, ...]
    proposers: tuple[int, ...]  # [tokens] kind of the proposer that had named each, or NOBODY
    known: int  # nodes of the reader's stream that had arrived when the last forward began
    held: int  # candidates below the root now
    acknowledged: int  # length that the target knows the client to have
    nodes: int  # computed for the session, roots included
    forwards: int  # in which the session took part
    lone: int  # forwards in which it had no candidates
    queue_seconds: float  # spent waiting for forwards
    model_seconds: float  # of the session's forwards
    share_seconds: float  # the session's part of them; all sessions' parts add up
    sessions: int  # in the last forward
    room: int  # candidates that a forward has for this session at present
    end: End


class Opened(NamedTuple):
    """A prefilled prompt: tokens whose keys were there already, seconds spent waiting and seconds
    of forwards.
    """

    reused: int
    queue_seconds: float
    prefill_seconds: float


@dataclass
class Spent:
    """What was computed for a session. Fields as in Progress."""

    nodes: int = 0
    forwards: int = 0
    lone: int = 0
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    share_seconds: float = 0.0
    sessions: int = 0
