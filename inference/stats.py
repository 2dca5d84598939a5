"""Counters of a text: traffic, time and acceptance. No clock is read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.order import Progress
from inference.proposer import NOBODY


@dataclass
class Traffic:
    """Costs of the sessions of one text so far; 0 where nothing is counted."""

    bytes_up: int = 0  # from client to target, with FRAMING_BYTES added per message
    bytes_down: int = 0  # from target to client, with FRAMING_BYTES added per message
    messages_up: int = 0
    messages_down: int = 0
    queue_seconds: float = 0.0  # time spent waiting for a row and for forwards
    prefill_seconds: float = 0.0  # time of the prompt's forwards
    model_seconds: float = 0.0  # time of the forwards in which the session took part
    share_seconds: float = 0.0  # the session's part of model_seconds, other sessions' part left out
    nodes: int = 0  # nodes computed for the session, roots included
    forwards: int = 0  # forwards in which the session took part
    lone: int = 0  # forwards in which the session had no candidates
    reused_tokens: int = 0  # prompt tokens whose keys were in the prefix cache
    resumes: int = 0  # broken streams that were resumed
    reopenings: int = 0  # sessions that were opened anew, with a prefill

    def copy(self) -> Traffic:
        """A copy, which later traffic does not change."""
        return replace(self)

    def follow(self, before: Progress | None, now: Progress) -> None:
        """Add what a session did between two reports. before: None at its beginning."""
        for name in _SUMS:
            more = getattr(now, name) - (getattr(before, name) if before is not None else 0)
            setattr(self, name, getattr(self, name) + more)


_SUMS = ("queue_seconds", "model_seconds", "share_seconds", "nodes", "forwards", "lone")


@dataclass
class DecodeStatistics:
    """Acceptance counts of one text, or of several added up.

    accepted_at_depth: [depth - 1] forwards that accepted a candidate of this depth.
    """

    forwards: int = 0  # forwards that committed tokens
    num_accepted_tokens: int = 0  # committed tokens that were candidates of their forward
    by_proposer: dict[int, int] = field(default_factory=dict)  # accepted tokens by kind
    accepted_at_depth: list[int] = field(default_factory=list)
    _depth: int = 0

    def count(self, proposers: Sequence[int]) -> None:
        """Count committed tokens in order, by who had named each.

        Each forward ends with a token of NOBODY, which is the target's own.
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
        """Mean tokens a forward, the target's own token included; 0 before the first forward."""
        made = self.num_accepted_tokens + self.forwards
        return made / self.forwards if self.forwards else 0.0
