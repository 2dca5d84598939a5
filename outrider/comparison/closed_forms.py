"""Closed forms: what a token costs in time alone and in synchronous rounds, where one overtakes the
other, and what serving gains.

Pure, and in any one unit of time. `alone` is a token of the target by itself, `drafting` all levels
of one round's draft, `verify` the target's pass over one round's nodes, `tokens` what a round
brings on average (the target's own token included). A ratio of means, never a mean of ratios. Chain
and tree differ in their arguments only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from inference.cost.accounting import expected_chain_tokens

LONGEST = 64
"""Lengths of a chain that best_chain tries."""


@dataclass(frozen=True)
class Round:
    """One round of drafting and verifying, on average. Raises ValueError for what no round can
    be.
    """

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


def exchange(
    round_trip: float,
    bytes_up: float = 0.0,
    bytes_down: float = 0.0,
    byte_time: float = 0.0,
    *,
    queue: float = 0.0,
    host: float = 0.0,
) -> float:
    """What lies between a finished draft and its verdict, the target's pass apart.

    byte_time: of a byte in either direction, 0 for a link without limit.  queue: waiting for others
    at the target. host: both programs outside their models, as measured without a network.
    """
    return round_trip + (bytes_up + bytes_down) * byte_time + queue + host


def time_at_the_target(made: Round, host: float = 0.0) -> float:
    """A token where no network lies within a round."""
    return (made.drafting + made.verify + host) / made.tokens


def synchronous_time(made: Round, between: float) -> float:
    """A token where the draft waits for each verdict; `between` is exchange()."""
    return (made.drafting + between + made.verify) / made.tokens


def least_time(miss: float, round_trip: float, verify: float) -> float:
    """No lossless split of drafting and verifying makes a token faster: each miss waits for the
    target's correction.

    miss: probability that the target's token is none of the guesses for its position.
    """
    _check_share("miss", miss)
    return miss * (round_trip + verify)


def break_even_round_trip(alone: float, made: Round, host: float = 0.0) -> float:
    """The round trip below which a distributed round beats the target alone; negative where it
    does not even on loopback.
    """
    return made.tokens * alone - made.verify - made.drafting - host


def capacity_over_alone(tokens: float, alone: float, verify: float) -> float:
    """Clients that a saturated target serves when they draft, for each that it serves alone: both
    times are forwards of equally many sessions.
    """
    return tokens * alone / verify


class BestChain(NamedTuple):
    """The chain that makes a token fastest, and that time."""

    length: int
    time: float


def best_chain(
    acceptance: float, round_time: Callable[[int], float], longest: int = LONGEST
) -> BestChain:
    """Of the chains of 1 to `longest`, whose whole round takes round_time(length). The shortest
    of equals.
    """
    times = [
        BestChain(length, round_time(length) / expected_chain_tokens(length, acceptance))
        for length in range(1, longest + 1)
    ]
    return min(times, key=lambda chain: chain.time)


def acceptance_of(accepted: float, missed: float) -> float:
    """Chance that a guess is the target's token: levels that were accepted, and rounds that
    ended by a miss. 0 where nothing was guessed.
    """
    return accepted / (accepted + missed) if accepted + missed else 0.0


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a probability: got {value}")
