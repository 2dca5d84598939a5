"""Counters of a text, each with its definition. No clock is read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.order import Progress
from inference.proposer import NOBODY

FRAMING_BYTES = 88
"""Around each message on its way, as an estimate: gRPC's prefix 5, HTTP/2's frame 9, TLS 1.3's
record 22, the headers of TCP (with time stamps) and IPv4 52. Messages that leave together share
some of it; acknowledgements of TCP are not in it.
"""


@dataclass
class Traffic:
    """What a text's sessions have cost so far; zeros where nothing is counted.

    bytes_up, bytes_down: of messages and, estimated, of what is put around each (FRAMING_BYTES).
    queue_seconds: of waiting for a row and for forwards.
    model_seconds: of forwards that the session took part in.
    share_seconds: the session's part of these, which is less where others took part.
    nodes, forwards, lone: as in inference.order.Progress.
    reused_tokens: of prompts, whose keys the target had already.
    resumes: streams that broke and were taken up again.
    reopenings: sessions that were opened anew, with a prefill.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    messages_up: int = 0
    messages_down: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    model_seconds: float = 0.0
    share_seconds: float = 0.0
    nodes: int = 0
    forwards: int = 0
    lone: int = 0
    reused_tokens: int = 0
    resumes: int = 0
    reopenings: int = 0

    def copy(self) -> Traffic:
        """A copy that does not change any more."""
        return replace(self)

    def follow(self, before: Progress | None, now: Progress) -> None:
        """A session has come from `before` (None: its beginning) to `now`."""
        for name in _SUMS:
            more = getattr(now, name) - (getattr(before, name) if before is not None else 0)
            setattr(self, name, getattr(self, name) + more)


_SUMS = ("queue_seconds", "model_seconds", "share_seconds", "nodes", "forwards", "lone")


@dataclass
class DecodeStatistics:
    """Who named the tokens of one text, or of several, added up.

    forwards: that brought tokens.
    num_accepted_tokens: tokens that a proposer had named in time.
    by_proposer: how many of these by kind.
    accepted_at_depth: [depth - 1] forwards that accepted a candidate of this depth.
    """

    forwards: int = 0
    num_accepted_tokens: int = 0
    by_proposer: dict[int, int] = field(default_factory=dict)
    accepted_at_depth: list[int] = field(default_factory=list)
    _depth: int = 0

    def count(self, proposers: Sequence[int]) -> None:
        """Take tokens in their order: each forward ends with one that nobody had named."""
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
        """Tokens a forward, the target's own token included; 0 before the first."""
        made = self.num_accepted_tokens + self.forwards
        return made / self.forwards if self.forwards else 0.0
