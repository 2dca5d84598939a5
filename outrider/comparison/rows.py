"""A row of the comparison: what one architecture did at one round trip, summed up from its
texts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inference.cost.quantity import Figure
from outrider.comparison.accounting import Account
from outrider.comparison.arms import Arm
from outrider.comparison.gauges import Reading
from outrider.comparison.margins import Difference
from outrider.comparison.prediction import decoding
from outrider.comparison.spread import Interval, Percentiles, bootstrap_median, percentiles

_COUNTS = (
    "forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens", "draft_calls",
    "bytes_up", "bytes_down", "messages_up", "messages_down",
)  # fmt: skip
_FIGURES = ("usd_per_million", "usd_per_million_by_forwards", "joules_per_token")
_TIMES = ("draft_seconds", "queue_seconds", "target_seconds", "prefill_seconds")


@dataclass(frozen=True)
class Row:
    """Seconds, bytes and tokens over all texts of an arm.

    ratio: of tokens per second, text by text, to the target-only run beside it; above 1 is faster.
    None where target-only was not run. time_per_output_token: of each text, after its first chunk.
    inter_chunk: between tokens that came together and the next ones. acceptance_length: tokens a
    forward; acceptance_length_drafted: the same of forwards with candidates.
    acceptance_by_position: share of forwards that accepted a candidate of depth 1, 2, ...
    rest_seconds: in which the text was neither computed nor in line at the target: the network,
    both programs, the opening of sessions, and drafting that the target waited for.
    usd_per_million: the target is held all the time; usd_per_million_by_forwards: its forwards
    alone are paid.  seconds_per_token: of all texts, after their first chunks; predicted is the
    same by a closed form.  identical_texts: None without target-only runs.
    """

    architecture: str
    setting: str
    rtt_ms: float
    texts: int
    tokens: int
    tokens_per_second: Interval
    ratio: Interval | None
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None
    inter_chunk: Percentiles | None
    forwards: int
    lone_forwards: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_length: float
    acceptance_length_drafted: float
    acceptance_rate: float
    acceptance_by_position: list[float]
    draft_calls: int
    draft_seconds: float
    rest_seconds: float
    queue_seconds: float
    target_seconds: float
    prefill_seconds: float
    bytes_up: int
    bytes_down: int
    messages_up: int
    messages_down: int
    usd_per_million: Figure
    usd_per_million_by_forwards: Figure
    joules_per_token: Figure
    memory_here: int | None
    memory_target: int | None
    identical_texts: int | None
    differences: list[Difference]
    seconds_per_token: float | None
    predicted: float | None
    device: str  # of the target, as it describes itself: an emulated one says so

    @property
    def error(self) -> float | None:
        """Of the prediction: 0.1 is a tenth too slow."""
        if self.predicted is None or not self.seconds_per_token:
            return None
        return self.predicted / self.seconds_per_token - 1

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        intervals = (
            "tokens_per_second",
            "ratio",
            "time_to_first_token",
            "time_per_output_token",
            "inter_chunk",
        )
        named = {
            name: None if (value := getattr(self, name)) is None else value._asdict()
            for name in intervals
        }
        figures = {name: getattr(self, name).record() for name in _FIGURES}
        return {
            **asdict(self),
            **named,
            **figures,
            "differences": [one.record() for one in self.differences],
            "prediction_error": self.error,
        }


def summarise(
    arm: Arm,
    rtt_ms: float,
    readings: Sequence[Reading],
    baseline: Sequence[Reading] | None,
    account: Account,
    differences: Sequence[Difference],
    predicted: float | None,
) -> Row:
    """`baseline` holds the target-only readings of the same requests in the same order,
    `differences` where texts are not the same.
    """
    done = [reading.done for reading in readings]
    counts = {name: sum(getattr(text, name) for text in done) for name in _COUNTS}
    times = {name: sum(getattr(text, name) for text in done) for name in _TIMES}
    forwards, tokens = counts["forwards"], sum(len(text.token_ids) for text in done)
    with_candidates, accepted = forwards - counts["lone_forwards"], counts["num_accepted_tokens"]
    there = sum(times[name] for name in ("queue_seconds", "target_seconds", "prefill_seconds"))
    depth = max(len(text.accepted_at_depth) for text in done)
    at_depth = [
        sum(text.accepted_at_depth[index] for text in done if index < len(text.accepted_at_depth))
        for index in range(depth)
    ]
    per_token = [
        seconds for text in done if (seconds := decoding([text]).seconds_per_token) is not None
    ]
    gaps = [
        later - earlier
        for text in done
        for earlier, later in zip(text.arrivals, text.arrivals[1:], strict=False)
    ]
    return Row(
        architecture=arm.name,
        setting=arm.setting,
        rtt_ms=rtt_ms,
        texts=len(done),
        tokens=tokens,
        tokens_per_second=bootstrap_median([text.tokens_per_second for text in done]),
        ratio=_ratio(readings, baseline),
        time_to_first_token=percentiles([text.time_to_first_token for text in done]),
        time_per_output_token=percentiles(per_token),
        inter_chunk=percentiles(gaps),
        acceptance_length=tokens / forwards if forwards else 0.0,
        acceptance_length_drafted=1 + accepted / with_candidates if with_candidates else 0.0,
        acceptance_rate=accepted / max(counts["num_draft_tokens"], 1),
        acceptance_by_position=[count / forwards for count in at_depth],
        rest_seconds=max(0.0, sum(text.seconds for text in done) - there),
        **times,
        **counts,
        usd_per_million=account.usd_per_million(arm.name, readings),
        usd_per_million_by_forwards=account.usd_per_million(arm.name, readings, by_forwards=True),
        joules_per_token=account.joules_per_token(readings),
        memory_here=_most([reading.memory_here for reading in readings]),
        memory_target=_most([reading.memory_target for reading in readings]),
        identical_texts=None if baseline is None else len(done) - len(differences),
        differences=list(differences),
        seconds_per_token=decoding(done).seconds_per_token,
        predicted=predicted,
        device=done[0].device,
    )


def _ratio(readings: Sequence[Reading], baseline: Sequence[Reading] | None) -> Interval | None:
    if baseline is None:
        return None
    pairs = zip(readings, baseline, strict=True)
    return bootstrap_median(
        [ours.done.tokens_per_second / alone.done.tokens_per_second for ours, alone in pairs]
    )


def _most(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if known else None
