"""Closed forms of a token's time, and what they predict of the arms of a comparison.

The closed forms say what a token takes from the target alone and in synchronous rounds, where one
is faster than the other, and what serving gains. They are pure, work in any one unit of time, and
take ratios of means, never means of ratios. Chain and tree differ in their arguments only:

alone: a token of the target by itself
drafting: all levels of one round's draft
verify: the target's pass over one round's nodes
tokens: what a round brings on average, the target's own token included

Predictions take a round's draft, pass, tokens and bytes from all of an arm's sweep runs. None of
these contains the network. What both programs add to a round is measured at the first round trip of
the comparison. The rest is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from outrider.completion import Completion

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


def expected_chain_tokens(length: int, acceptance: float) -> float:
    """Return the expected tokens of a round that drafts a chain, the target's own included.

    B = 1 + a + ... + a^length (Leviathan et al. 2023, equation 1). Raises ValueError for an
    acceptance or a length that cannot be.
    """
    if length < 0 or not 0 <= acceptance <= 1:
        raise ValueError(
            f"a chain has a length of 0 or more and an acceptance of 0 to 1: got {length} and "
            f"{acceptance}"
        )
    return sum(acceptance**depth for depth in range(length + 1))


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


class Network(NamedTuple):
    """A link in seconds: a round trip beyond the machine's own, and a byte in either direction."""

    round_trip: float
    byte_time: float = 0.0


@dataclass(frozen=True)
class Costs:
    """One round of an arm on average, in seconds and bytes."""

    made: Round
    nodes: float  # nodes of the target's pass, the root included
    bytes_up: float
    bytes_down: float
    queue: float
    host: float  # time in both programs outside their models, loopback included


Time = Callable[[Costs, Network], float]
"""Seconds of a token by a closed form."""


def made_at_the_target(costs: Costs, network: Network) -> float:
    """Predicted time a token where no round crosses the network."""
    return time_per_token(costs.made, costs.queue + costs.host)


def made_across(costs: Costs, network: Network) -> float:
    """Predicted time a token where every round waits for its verdict."""
    sent = (costs.bytes_up + costs.bytes_down) * network.byte_time
    return time_per_token(costs.made, network.round_trip + sent + costs.queue + costs.host)


class Decoding(NamedTuple):
    """Texts from their first chunk on, without prefill and the opening of sessions."""

    seconds: float
    rounds: float
    tokens: int

    @property
    def seconds_per_token(self) -> float | None:
        return self.seconds / self.tokens if self.tokens else None


def decoding(texts: Sequence[Completion]) -> Decoding:
    """The sums over these texts. The first chunk is charged its share of the forwards by its
    tokens.
    """
    begun = [done for done in texts if done.arrivals]
    return Decoding(
        sum(done.arrivals[-1] - done.arrivals[0] for done in begun),
        sum(done.forwards * sum(done.chunk_tokens[1:]) / sum(done.chunk_tokens) for done in begun),
        sum(sum(done.chunk_tokens[1:]) for done in begun),
    )


def costs_of(texts: Sequence[Completion], host: float) -> Costs | None:
    """Costs of one arm's round by these runs; None where they were too short to tell. Times are
    medians over texts, which a single stall does not move.
    """
    told = [done for done in texts if _told(done)]
    if not told:
        return None
    rounds, after_first = sum(done.forwards for done in told), decoding(told)
    drafting, verify, queue = (
        float(median(getattr(done, name) / done.forwards for done in told))
        for name in ("draft_seconds", "target_seconds", "queue_seconds")
    )
    up, down, drafted = (
        sum(getattr(done, name) for done in told) / rounds
        for name in ("bytes_up", "bytes_down", "num_draft_tokens")
    )
    return Costs(
        Round(drafting, verify, max(after_first.tokens / after_first.rounds, 1.0)),
        1 + drafted,
        up,
        down,
        queue,
        host,
    )


def host_of(texts: Sequence[Completion], round_trip: float) -> float:
    """Seconds of a round that neither a model nor the emulated network took.

    round_trip: that of these runs; 0 where no part of the round crosses the network
    """
    left = []
    for done in texts:
        if _told(done):
            spent = (done.draft_seconds + done.target_seconds + done.queue_seconds) / done.forwards
            each = (done.arrivals[-1] - done.arrivals[0]) / (done.forwards - 1)
            left.append(each - spent - round_trip)
    return max(0.0, median(left)) if left else 0.0


def _told(done: Completion) -> bool:
    """Whether the text is long enough to tell."""
    return len(done.arrivals) > 1 and done.forwards > 1


def acceptance(texts: Sequence[Completion]) -> float:
    """Chance that the target's next token is among the guesses for its position, if there are any.

    A round whose path is as long as the longest of all is counted as without a miss. Forwards
    without candidates have nothing to miss.
    """
    accepted = sum(done.num_accepted_tokens for done in texts)
    deepest = max((len(done.accepted_at_depth) for done in texts), default=0)
    whole = sum(
        done.accepted_at_depth[-1]
        for done in texts
        if deepest and len(done.accepted_at_depth) == deepest
    )
    missed = sum(done.forwards - done.lone_forwards for done in texts) - whole
    return accepted / (accepted + missed) if accepted + missed else 0.0
