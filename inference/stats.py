"""Counters of a run, each with its definition. No clock is read here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass
class Traffic:
    """What a verifier's sessions have cost so far: payload bytes, and seconds on the target; zeros where nothing is counted.

    queue_seconds: waiting for a row and for others' model steps.  model_seconds: verifying and generating.  away_seconds: between
    asking for something and the first word of the answer.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    model_seconds: float = 0.0
    away_seconds: float = 0.0
    reused_tokens: int = 0  # of prompts, whose keys the target had already
    resumes: int = 0  # streams that broke and were taken up again where they were
    reopenings: int = 0  # sessions that were opened anew, with a prefill

    def copy(self) -> Traffic:
        """As it is now."""
        return replace(self)


@dataclass
class Statistics:
    """Counts of one session (or, added up, of several).

    rounds: trees verified.  num_draft_tokens: nodes sent below the roots.  num_accepted_tokens: of these, on accepted paths.
    """

    rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at_depth: list[int] = field(
        default_factory=list
    )  # [depth - 1] rounds that accepted a node of this depth

    def count(self, drafted: int, accepted: int) -> None:
        """Add one round: nodes sent below the root, and how many of them were accepted."""
        self.rounds += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.accepted_at_depth += [0] * (accepted - len(self.accepted_at_depth))
        for depth in range(accepted):
            self.accepted_at_depth[depth] += 1

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per round, the target's own token included; 0 before the first round."""
        return (self.num_accepted_tokens + self.rounds) / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0
