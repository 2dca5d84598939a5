"""Predicts the time of synchronous arms and of target-only by the closed forms, from sweep runs.

A round's draft, pass, tokens and bytes are taken from all of an arm's sweep runs. None of these
contains the network. What both programs add to a round is measured at the first round trip of the
comparison. The rest is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from outrider.compare.closed_forms import Round, time_per_token
from outrider.completion import Completion


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
