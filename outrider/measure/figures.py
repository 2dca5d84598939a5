"""Computes all figures of a run from its outputs: rows by link, kind and arm, with percentiles and
bootstrap intervals (fixed seed).

A speed-up compares the tokens/s of two outputs for the same prompt and turn. It is reported as the
geometric mean over prompts, with its 95 % interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.cost.billing import Figure, Quality, total
from outrider.measure.journal import TextKey, Values
from outrider.measure.run import AGAIN, BASELINE
from outrider.text.pieces import Gaps, gaps_between

CONFIDENCE = 0.95
_DRAWS = 2000
_SEED = 20261

MIN_TEXTS = 6
"""Minimum number of outputs for claiming a difference: five or fewer values all lie on one side of
the true median too often (2 in 2**5 cases).
"""

ALL = "all"
"""The kind of a row over all kinds."""

COSTS = ("usd_per_million", "joules_per_million")
"""Names of the figures that may be unavailable, and then have a reason."""

_COUNTS = (
    "forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens", "draft_calls",
    "bytes_up", "bytes_down", "messages_up", "messages_down", "draft_seconds", "queue_seconds",
    "target_seconds", "prefill_seconds",
)  # fmt: skip
"""Counts and seconds of an output's record that a row sums over its outputs."""

Texts: TypeAlias = Mapping[TextKey, Values]
Pair: TypeAlias = tuple[TextKey, Values, Values]
"""An output's key, its record, and the record of the target-only output to compare it with."""


class Interval(NamedTuple):
    """A median or mean with its confidence interval, at the level CONFIDENCE."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Percentiles(NamedTuple):
    """The 50th, 90th and 99th percentiles, and the maximum."""

    p50: float
    p90: float
    p99: float
    largest: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Return the percentiles; None without values, e.g. for gaps if all tokens came at once."""
    return Percentiles(*np.quantile(values, [0.5, 0.9, 0.99, 1.0]).tolist()) if values else None


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with its interval, which has zero width for a single value."""
    drawn = np.random.default_rng(_SEED).choice(values, (_DRAWS, len(values)))
    return _interval(float(np.median(values)), np.median(drawn, axis=1))


def geometric_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Return the geometric mean over groups with its interval.

    groups: ratios by prompt. The bootstrap draws prompts, and repetitions within each prompt:
    repetitions depend on each other, and a single prompt still shows how far they spread.
    """
    generator, logs = np.random.default_rng(_SEED), [np.log(group) for group in groups]
    means = [generator.choice(group, (_DRAWS, len(group))).mean(axis=1) for group in logs]
    drawn = generator.integers(len(groups), size=(_DRAWS, len(groups)))
    draws = np.take_along_axis(np.stack(means, axis=1), drawn, axis=1)  # [draw, group]
    value = np.exp(np.mean([group.mean() for group in logs]))
    return _interval(float(value), np.exp(draws.mean(axis=1)))


def _interval(value: float, draws: NDArray[Any]) -> Interval:
    """Return the interval of bootstrap draws, widened to include the value despite rounding."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Interval(value, min(low, value), max(high, value))


class Difference(NamedTuple):
    """The first token at which an output differs from the target-only output."""

    prompt: str
    at: int
    ours: int | None  # None: the output ended before this token
    theirs: int | None


def speed(text: Values) -> float:
    """Return the tokens per second of an output."""
    return len(text["token_ids"]) / float(text["seconds"])


def speed_up(pairs: Iterable[Pair]) -> Interval | None:
    """Return the speed-up of the first output of each pair over the second; None without pairs.
    Turns and repetitions of a prompt form one group, since they are not independent.
    """
    of_prompt = defaultdict[str, list[float]](list)
    for key, ours, theirs in pairs:
        of_prompt[key.prompt].append(speed(ours) / speed(theirs))
    return geometric_interval([*of_prompt.values()]) if of_prompt else None


@dataclass(frozen=True)
class Row:
    """Figures of one arm's outputs, for one kind of prompts and one link. Times are in seconds."""

    rtt_ms: float  # emulated
    kind: str
    arm: str
    prompts: int
    texts: int
    tokens: int
    counts: Mapping[str, float]  # sums over outputs
    tokens_per_second: float  # median over outputs
    speed_up: Interval | None  # over target-only; None without it, and for target-only itself
    noise: Interval | None  # of target-only over itself, on the same prompts
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None  # after an output's first chunk
    gaps: Gaps
    acceptance_length: float  # tokens per forward pass
    acceptance_by_depth: Sequence[float]  # share of forward passes that accepted the depth
    costs: Mapping[str, Figure]
    compared: int  # outputs with a target-only output to compare with
    differences: Sequence[Difference]
    device: str  # the target's description, which mentions emulation

    @property
    def equal(self) -> int:
        """The number of outputs that equal target-only's, token for token."""
        return self.compared - len(self.differences)

    @property
    def faster(self) -> bool:
        """Whether the arm is faster than target-only: the lower bound of its speed-up, over enough
        outputs, exceeds 1 and the noise of target-only over itself.
        """
        noise = 1.0 if self.noise is None else max(1.0, self.noise.high)
        return self.speed_up is not None and self.texts >= MIN_TEXTS and self.speed_up.low > noise

    @property
    def slower(self) -> bool:
        noise = 1.0 if self.noise is None else min(1.0, self.noise.low)
        return self.speed_up is not None and self.texts >= MIN_TEXTS and self.speed_up.high < noise

    def record(self) -> Values:
        """Return the row as plain data for JSON."""
        fields: Values = {**vars(self), "equal": self.equal}
        for name in ("speed_up", "noise", "time_to_first_token", "time_per_output_token", "gaps"):
            fields[name] = fields[name] and fields[name]._asdict()
        fields["differences"] = [difference._asdict() for difference in self.differences]
        costs = {name: cost.record() for name, cost in fields.pop("costs").items()}
        fields |= fields.pop("counts") | costs
        return fields


def summarise(texts: Texts, arms: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a run by link, kind and arm; with several kinds, also rows over all kinds.

    arms: order of the arms after target-only and its A/A copy; other arms follow by name
    """
    ranks = {arm: rank for rank, arm in enumerate(dict.fromkeys([BASELINE, AGAIN, *arms]))}
    rows = list[Row]()
    for trip in dict.fromkeys(key.rtt_ms for key in texts):
        over_link = {key: text for key, text in texts.items() if key.rtt_ms == trip}
        kinds = list(dict.fromkeys(key.kind for key in over_link))
        for kind in [*kinds, ALL] if len(kinds) > 1 else kinds:
            mine = {key: text for key, text in over_link.items() if kind in (ALL, key.kind)}
            names = sorted({key.arm for key in mine}, key=lambda arm: (ranks.get(arm, 99), arm))
            noise = speed_up(_pairs(mine, AGAIN))
            rows += [_row(mine, kind, arm, noise) for arm in names]
    return rows


def totals(rows: Sequence[Row]) -> list[Row]:
    """Return the rows over all kinds."""
    return [row for row in rows if row.kind == ALL] or [*rows]


def _pairs(texts: Texts, arm: str) -> list[Pair]:
    """Return the outputs of an arm, each with the target-only output of its key, if it exists."""
    mine = ((key, text, texts.get(key._replace(arm=BASELINE))) for key, text in texts.items())
    return [(key, text, base) for key, text, base in mine if key.arm == arm and base is not None]


def _row(texts: Texts, kind: str, arm: str, noise: Interval | None) -> Row:
    pairs, keys = _pairs(texts, arm), [key for key in texts if key.arm == arm]
    records = [texts[key] for key in keys]
    counts = {name: sum(text[name] for text in records) for name in _COUNTS}
    tokens, forwards = sum(len(text["token_ids"]) for text in records), counts["forwards"]
    at_depth = zip_longest(*(text["accepted_at_depth"] for text in records), fillvalue=0)
    per_token = [seconds for text in records if (seconds := _seconds_per_token(text)) is not None]
    return Row(
        rtt_ms=keys[0].rtt_ms,
        kind=kind,
        arm=arm,
        prompts=len({key.prompt for key in keys}),
        texts=len(records),
        tokens=tokens,
        counts=counts,
        tokens_per_second=median(map(speed, records)),
        speed_up=None if arm == BASELINE else speed_up(pairs),
        noise=noise,
        time_to_first_token=percentiles([text["time_to_first_token"] for text in records]),
        time_per_output_token=percentiles(per_token),
        gaps=gaps_between(text["arrivals"] for text in records),
        acceptance_length=tokens / forwards if forwards else 0.0,
        acceptance_by_depth=[sum(at) / forwards for at in at_depth],
        costs={name: median_figure([_figure(text[name]) for text in records]) for name in COSTS},
        compared=len(pairs),
        differences=list(_differences(pairs)),
        device=records[0]["device"],
    )


def _seconds_per_token(text: Values) -> float | None:
    """Return seconds per token after the first chunk (no prefill); None if there is only one."""
    arrivals, behind = text["arrivals"], sum(text["chunk_tokens"][1:])
    return (arrivals[-1] - arrivals[0]) / behind if behind else None


def _differences(pairs: Iterable[Pair]) -> Iterator[Difference]:
    for key, ours, theirs in pairs:
        tokens = enumerate(zip_longest(ours["token_ids"], theirs["token_ids"]))
        if first := next(((at, *pair) for at, pair in tokens if pair[0] != pair[1]), None):
            yield Difference(f"{key.prompt}, turn {key.turn + 1}", *first)


def median_figure(figures: Sequence[Figure]) -> Figure:
    """Return the median of one figure per output, with the worst quality of these figures. If any
    figure is unavailable, so is the median, with the reasons.
    """
    values = [figure.value for figure in figures if figure.value is not None]
    worst = total(figures)
    return worst if worst.value is None else replace(worst, value=median(values))


def _figure(record: Values) -> Figure:
    return Figure(**record | {"quality": Quality[record["quality"].upper()]})
