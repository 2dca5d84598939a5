"""Finds the best fixed setting of an architecture by halving: all settings try a few texts, and the
better half goes on to more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.compare.arms import Arm
from outrider.text.completion import Completion, Request

STAGES = (1, 2)
"""Texts of each stage. The last stage is repeated until one setting is left."""


@dataclass
class Trial:
    """One arm in a sweep."""

    arm: Arm
    round_trip: float  # emulated, seconds
    had_rivals: bool
    texts: list[Completion] = field(default_factory=list)
    chosen: bool = False

    @property
    def seconds_per_token(self) -> float:
        """Seconds a token over whole texts, prefill included. The sweep decides by this."""
        tokens = sum(len(done.token_ids) for done in self.texts)
        return sum(done.seconds for done in self.texts) / max(1, tokens)

    def record(self) -> dict[str, object]:
        """The trial as plain data for JSON."""
        return {
            **self.arm.record(),
            "rtt_ms": self.round_trip * 1e3,
            "texts": len(self.texts),
            "ms_per_token": self.seconds_per_token * 1e3,
            "chosen": self.chosen,
        }


def sweep(
    groups: Sequence[Sequence[Arm]], requests: Sequence[Request], round_trip: float
) -> list[Trial]:
    """Try all arms and choose one of each group. Returns a trial for each arm.

    All groups take turns, text by text. Each arm has warmed up before.
    """
    left = [[Trial(arm, round_trip, len(group) > 1) for arm in group] for group in groups]
    trials = [trial for group in left for trial in group]
    short = replace(requests[0], max_new_tokens=min(8, requests[0].max_new_tokens))
    for trial in trials:
        trial.arm.complete(short)
    done, stage = 0, 0
    while stage < len(STAGES) or any(len(group) > 1 for group in left):
        more = STAGES[min(stage, len(STAGES) - 1)]
        for index in range(done, done + more):
            for trial in (trial for group in left for trial in group):
                trial.texts.append(trial.arm.complete(requests[index % len(requests)]))
        done, stage = done + more, stage + 1
        left = [
            sorted(group, key=lambda trial: trial.seconds_per_token)[: -(-len(group) // 2)]
            for group in left
        ]
    for group in left:
        group[0].chosen = True
    return trials
