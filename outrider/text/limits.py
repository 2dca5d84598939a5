"""Explains a measured speed: what the time of a token consists of, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from inference.times import Times
from outrider.text.completion import Completion

BUSY, OFTEN_ALONE = 0.8, 0.25
"""Thresholds for a limit: the share of time in which the draft is busy, and the share of forward
passes that have no candidates.
"""

GOOD = 0.75
"""Share of a good draft's tokens that a target accepts."""

_CHAINS = (2, 4, 8, 16)  # nodes of a forward pass, its root included


class Limit(Enum):
    """A bottleneck of generation. Its value describes it and suggests a remedy."""

    NO_DRAFT = (
        "limited by the target: without accepted candidates each token takes a forward pass; "
        "try a draft model"
    )
    USELESS = "limited by the target: it accepts hardly any draft tokens; try another draft"
    ARITHMETIC = (
        "limited by the target's arithmetic: {reason}, more than a draft saves; try more threads, "
        "another --dtype or an accelerator at the target"
    )
    DRAFT = (
        "limited by the draft: its calls do not keep up with the target; try a faster draft, or "
        "a separate device for it"
    )
    LINK = (
        "limited by the link: candidates arrive too late for many forward passes; try a closer "
        "target"
    )
    TARGET = (
        "limited by the target: its forward passes have candidates; try a faster target, or a "
        "draft that agrees with it more often"
    )


def arithmetic_reason(times: Times) -> str:
    """Return in words why even a good draft does not pay on a target with these times; empty if a
    good draft pays.
    """
    single = times.seconds(1, 1)
    if not single:
        return ""
    ratio = {nodes: times.seconds(1, nodes) / single for nodes in _CHAINS}
    # average tokens of a forward pass, relative to its time
    gain = {nodes: (1 - GOOD**nodes) / (1 - GOOD) / ratio[nodes] for nodes in _CHAINS}
    best = max(_CHAINS, key=gain.__getitem__)
    if gain[best] > 1:
        return ""
    return f"a forward pass of {best} nodes takes {ratio[best]:.2g} times as long as of one node"


def time_lines(completions: Sequence[Completion], round_trip: float, times: Times) -> list[str]:
    """Return two lines about completions with a draft that never waits: what the time of a token
    consists of, and what limits the speed of the slowest completion.

    round_trip: seconds of the link's round trip
    times: the target's
    """
    slowest = max(completions, key=lambda done: done.seconds / max(len(done.token_ids), 1))
    tokens, forwards = len(slowest.token_ids), slowest.traffic.forwards
    if not tokens or not forwards:
        return []
    target = slowest.traffic.model_seconds / forwards
    terms = [
        f"a token takes {slowest.seconds / tokens * 1e3:.3g} ms: target "
        f"{forwards / tokens:.2f} x {target * 1e3:.3g} ms"
    ]
    if calls := slowest.draft_calls:
        terms.append(f"draft {calls / tokens:.2f} x {slowest.draft_seconds / calls * 1e3:.3g} ms")
    terms.append(f"round trip {round_trip * 1e3:.3g} ms")
    return [", ".join(terms), limit_words(slowest, round_trip, times)]


def limit_words(done: Completion, round_trip: float, times: Times) -> str:
    """Describe what limited a completion's speed. For the arguments see time_lines()."""
    reason = arithmetic_reason(times)
    return limit_of(done, round_trip, reason).value.format(reason=reason)


def limit_of(done: Completion, round_trip: float, reason: str = "") -> Limit:
    """Return what limited the speed of a completion.

    reason: arithmetic_reason() of the target
    """
    useless = done.num_accepted_tokens <= 0.05 * len(done.token_ids)
    if reason and useless:
        return Limit.ARITHMETIC
    if useless:
        return Limit.USELESS if done.draft_calls else Limit.NO_DRAFT
    if not done.draft_calls:  # copied text needs no forward pass
        return Limit.TARGET
    call = done.draft_seconds / done.draft_calls
    if done.traffic.lone >= OFTEN_ALONE * done.traffic.forwards:
        return Limit.LINK if round_trip > call else Limit.DRAFT
    busy = done.draft_seconds >= BUSY * done.seconds
    return Limit.DRAFT if busy else Limit.TARGET
