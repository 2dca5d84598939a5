"""Closed forms: time a token alone and in synchronous rounds, where one is faster than the other,
and what serving gains.

All functions are pure and work in any one unit of time. Chain and tree differ in their arguments
only. Rates are ratios of means, never means of ratios.

alone: a token of the target by itself
drafting: all levels of one round's draft
verify: the target's pass over one round's nodes
tokens: what a round brings on average, the target's own token included
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from inference.cost.accounting import expected_chain_tokens

LONGEST = 32
"""Lengths of a chain that best_chain tries."""


@dataclass(frozen=True)
class Round:
    """One round of drafting and verifying, on average. Raises ValueError for impossible values."""

    drafting: float
    verify: float
    tokens: float

    def __post_init__(self) -> None:
        if self.drafting < 0 or self.verify < 0:
            raise ValueError(
                f"times are 0 or more: got {self.drafting} of drafting and {self.verify} of "
                "verifying"
            )
        if self.tokens < 1:
            raise ValueError(f"a round brings the target's own token at least: got {self.tokens}")


def time_per_token(made: Round, between: float) -> float:
    """Time a token of synchronous rounds.

    between: time from a finished draft to its verdict besides the target's pass: network, queue and
    both programs
    """
    return (made.drafting + between + made.verify) / made.tokens


def least_time(miss: float, round_trip: float, verify: float) -> float:
    """A lower bound of the time a token of any rounds that the target waits for. Each miss waits
    for its correction. (A target that goes on by itself waits for nothing.)

    miss: probability that the target's token is none of the guesses for its position
    """
    if not 0 <= miss <= 1:
        raise ValueError(f"miss is a probability: got {miss}")
    return miss * (round_trip + verify)


def break_even_round_trip(alone: float, made: Round, host: float = 0.0) -> float:
    """The round trip below which a distributed round is faster than the target alone. It is
    negative where the round is slower even on loopback.
    """
    return made.tokens * alone - made.verify - made.drafting - host


def capacity_over_alone(tokens: float, alone: float, verify: float) -> float:
    """How many times as many clients a saturated target serves when they draft. Both times are
    forwards of equally many sessions.
    """
    return tokens * alone / verify


class BestChain(NamedTuple):
    """The chain that makes a token fastest, and that time."""

    length: int
    time: float


def best_chain(acceptance: float, round_time: Callable[[int], float]) -> BestChain:
    """The best of the chains whose whole round takes round_time(length); the shortest of equals."""
    times = [
        BestChain(length, round_time(length) / expected_chain_tokens(length, acceptance))
        for length in range(1, LONGEST + 1)
    ]
    return min(times, key=lambda chain: chain.time)
