"""Counters of a request: traffic, time and acceptance. Reads no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.order import Spent
from inference.proposer import NOBODY


@dataclass
class Traffic(Spent):
    """Costs of a request's sessions so far; 0 if nothing is counted.

    queue_seconds: includes the wait for a row
    """

    bytes_up: int = 0  # from client to target, including FRAMING_BYTES per message
    bytes_down: int = 0  # from target to client, including FRAMING_BYTES per message
    messages_up: int = 0
    messages_down: int = 0
    prefill_seconds: float = 0.0  # time of the prompt's forward passes
    reused_tokens: int = 0  # prompt tokens whose keys were in the prefix cache
    resumes: int = 0  # broken streams that were resumed
    reopenings: int = 0  # sessions that were opened again, with a prefill

    def copy(self) -> Traffic:
        """Return a copy, which later traffic does not change."""
        return replace(self)


@dataclass
class DecodeStatistics:
    """Acceptance counts of one request, or summed over several.

    accepted_at_depth: [depth - 1] forward passes that accepted a candidate at this depth.
    """

    forwards: int = 0  # forward passes that committed tokens
    num_accepted_tokens: int = 0  # committed tokens that were candidates in their forward pass
    by_proposer: dict[int, int] = field(default_factory=dict)  # accepted tokens by kind
    accepted_at_depth: list[int] = field(default_factory=list)
    _depth: int = 0

    def count(self, proposers: Sequence[int]) -> None:
        """Count committed tokens in order, by the proposer of each.

        Each forward pass ends with the target's own token, whose proposer is NOBODY.
        """
        for proposer in proposers:
            if proposer == NOBODY:
                self.forwards += 1
                self._depth = 0
                continue
            if len(self.accepted_at_depth) == self._depth:
                self.accepted_at_depth.append(0)
            self.accepted_at_depth[self._depth] += 1
            self._depth += 1
            self.num_accepted_tokens += 1
            self.by_proposer[proposer] = self.by_proposer.get(proposer, 0) + 1

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per forward pass, the target's own token included; 0 before the first forward
        pass.
        """
        tokens = self.num_accepted_tokens + self.forwards
        return tokens / self.forwards if self.forwards else 0.0
