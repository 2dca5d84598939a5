"""The one meaning of each figure: rows over the records of a run's texts, by link, kind and arm.

A speed-up is the ratio of seconds of two texts of one prompt that were made in the same turn (by
the token, where their lengths differ): geometric mean over prompts, with its 95 % interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from inference.cost.quantity import Figure, Quality
from outrider.measure.journal import TextKey, Values
from outrider.measure.statistics import (
    MIN_TEXTS,
    FigureInterval,
    Interval,
    Percentiles,
    bootstrap_median,
    geometric_interval,
    median_figure,
    pareto,
    percentiles,
)
from outrider.text.pieces import Gaps, gaps_between

BASELINE, AGAIN = "target-only", "target-only again"
"""The arm that all others are compared with, and the same arm once more: an A/A pair, whose
speed-up shows the noise of a run.
"""

ALL = "all"
"""Name of all kinds together."""

COSTS = (
    "usd_per_million", "usd_per_million_by_forwards", "joules_per_million",
    "joules_here_per_million",
)  # fmt: skip
"""Figures of a text that may be unavailable, with the reason."""

_COUNTS = (
    "forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens", "draft_calls",
    "bytes_up", "bytes_down", "messages_up", "messages_down", "draft_seconds", "queue_seconds",
    "target_seconds", "prefill_seconds",
)  # fmt: skip
"""Counts and seconds of a text that are added up over texts."""

Texts = Mapping[TextKey, Values]
Pair = tuple[tuple[TextKey, Values], Values]
"""A text with its key, and the one that it is compared with."""


class SpeedUp(NamedTuple):
    """A geometric mean of ratios of seconds, and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Difference(NamedTuple):
    """The first token at which a text is not the target-only one."""

    prompt: str
    at: int
    ours: int | None  # None: the text ended there
    theirs: int | None


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position at which two texts differ; None where they are equal."""
    pairs = enumerate(zip_longest(ours, theirs))
    return next((index for index, (mine, other) in pairs if mine != other), None)


def span(text: Values) -> tuple[int, float]:
    """Tokens and seconds of a text. One that a time limit cut is taken to continue to its length
    as it did behind the middle of its tokens.
    """
    made, arrivals = np.cumsum(text["chunk_tokens"]), text["arrivals"]
    if text["finish_reason"] != "cancelled" or len(made) < 2:
        return len(text["token_ids"]), text["seconds"]
    middle = min(int(np.searchsorted(made, made[-1] / 2)), len(made) - 2)
    rate = (made[-1] - made[middle]) / (arrivals[-1] - arrivals[middle])
    return text["limit"], float(arrivals[-1] + (text["limit"] - made[-1]) / rate)


def _speed(text: Values) -> float:
    tokens, seconds = span(text)
    return tokens / seconds


def speed_up(pairs: Iterable[Pair]) -> SpeedUp | None:
    """Speed-up of the first text of each pair over the second; None without pairs. All turns and
    repetitions of a prompt count as one, since they are not independent.
    """
    of_prompt = defaultdict[str, list[float]](list)
    for (key, ours), theirs in pairs:
        of_prompt[key.prompt].append(_speed(ours) / _speed(theirs))
    if not of_prompt:
        return None
    mean = geometric_mean(geometric_mean(ratios) for ratios in of_prompt.values())
    low, high = geometric_interval([*of_prompt.values()])
    return SpeedUp(mean, min(low, mean), max(high, mean))  # equal ones differ by rounding


@dataclass(frozen=True)
class Row:
    """Figures of one arm's texts of one kind over one link. Times are in seconds."""

    rtt_ms: float  # emulated
    kind: str
    arm: str
    prompts: int
    texts: int
    tokens: int
    counts: Mapping[str, float]  # sums over texts
    tokens_per_second: Interval  # median over texts
    speed_up: SpeedUp | None  # over target-only; None without it, and for target-only itself
    noise: SpeedUp | None  # of target-only over itself, on the same prompts
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None  # after the first chunk of a text
    gaps: Gaps
    acceptance_length: float  # tokens a forward pass
    acceptance_by_depth: Sequence[float]  # share of forward passes that accepted the depth
    costs: Mapping[str, FigureInterval]
    compared: int  # texts that target-only made, too
    differences: Sequence[Difference]
    scored: int
    right: int
    device: str  # the target's, in its own words: an emulated one says so
    pareto: bool = False  # no row over this link is nowhere worse and somewhere better

    @property
    def equal(self) -> int:
        """Texts that are target-only's, token for token."""
        return self.compared - len(self.differences)

    @property
    def faster(self) -> bool:
        """Whether it is faster than target-only: by enough texts, beyond its own interval and
        beyond that of target-only over itself.
        """
        noise = 1.0 if self.noise is None else max(1.0, self.noise.high)
        return self.speed_up is not None and self.texts >= MIN_TEXTS and self.speed_up.low > noise

    @property
    def slower(self) -> bool:
        noise = 1.0 if self.noise is None else min(1.0, self.noise.low)
        return self.speed_up is not None and self.texts >= MIN_TEXTS and self.speed_up.high < noise

    def record(self) -> Values:
        """The row as plain data for JSON."""
        fields = dict(vars(self))
        counts, costs, parts = fields.pop("counts"), fields.pop("costs"), fields.pop("differences")
        return {
            **{name: _plain(value) for name, value in fields.items()},
            **counts,
            **{name: cost.record() for name, cost in costs.items()},
            "equal": self.equal,
            "differences": [one._asdict() for one in parts],
        }


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value


def kinds_of(keys: Iterable[TextKey]) -> list[str]:
    """The kinds of these texts, and all of them together where there are several."""
    kinds = list(dict.fromkeys(key.kind for key in keys))
    return [*kinds, ALL] if len(kinds) > 1 else kinds


def arms_of(keys: Iterable[TextKey], order: Sequence[str] = ()) -> list[str]:
    """The arms of these texts, target-only first and its repetition second.

    order: of the others; the rest follows by name
    """
    ranks = {arm: rank for rank, arm in enumerate(dict.fromkeys([BASELINE, AGAIN, *order]))}
    return sorted({key.arm for key in keys}, key=lambda arm: (ranks.get(arm, len(ranks)), arm))


def summarise(texts: Texts, arms: Sequence[str] = (), *, by_start: bool = False) -> list[Row]:
    """The rows of a run, by link, kind and arm, with the Pareto set marked.

    arms: their order
    by_start: whether each repetition began without stored times, and has rows of its own
    """
    rows = list[Row]()
    for trip in dict.fromkeys(key.rtt_ms for key in texts):
        for repeat in sorted({key.repeat for key in texts}) if by_start else [None]:
            here = {
                key: text
                for key, text in texts.items()
                if key.rtt_ms == trip and repeat in (None, key.repeat)
            }
            label = "" if repeat is None else f", start {repeat + 1}"
            for kind in kinds_of(here):
                rows += marked(_rows_of_kind(here, arms, kind, label))
    return rows


def _rows_of_kind(texts: Texts, order: Sequence[str], kind: str, label: str) -> Iterator[Row]:
    mine = [one for one in texts.items() if kind in (ALL, one[0].kind)]
    noise = speed_up(_pairs([one for one in mine if one[0].arm == AGAIN], texts))
    for arm in arms_of((key for key, _ in mine), order):
        row = _row([one for one in mine if one[0].arm == arm], texts, noise)
        yield replace(row, kind=f"{kind}{label}", arm=arm)


def _pairs(mine: Sequence[tuple[TextKey, Values]], texts: Texts) -> list[Pair]:
    beside = ((one, texts.get(one[0]._replace(arm=BASELINE))) for one in mine)
    return [(one, alone) for one, alone in beside if alone is not None]


def _row(mine: Sequence[tuple[TextKey, Values]], texts: Texts, noise: SpeedUp | None) -> Row:
    pairs, made = _pairs(mine, texts), [text for _, text in mine]
    counts = {name: sum(text[name] for text in made) for name in _COUNTS}
    tokens, forwards = sum(len(text["token_ids"]) for text in made), counts["forwards"]
    at_depth = zip_longest(*(text["accepted_at_depth"] for text in made), fillvalue=0)
    each = [seconds for text in made if (seconds := _seconds_per_token(text)) is not None]
    scores = [text["score"] for text in made if text["score"] is not None]
    return Row(
        rtt_ms=mine[0][0].rtt_ms,
        kind="",
        arm="",
        prompts=len({key.prompt for key, _ in mine}),
        texts=len(mine),
        tokens=tokens,
        counts=counts,
        tokens_per_second=bootstrap_median([_speed(text) for text in made]),
        speed_up=None if mine[0][0].arm == BASELINE else speed_up(pairs),
        noise=noise,
        time_to_first_token=percentiles([text["time_to_first_token"] for text in made]),
        time_per_output_token=percentiles(each),
        gaps=gaps_between(text["arrivals"] for text in made),
        acceptance_length=tokens / forwards if forwards else 0.0,
        acceptance_by_depth=[sum(at) / forwards for at in at_depth],
        costs={name: median_figure([_figure(text[name]) for text in made]) for name in COSTS},
        compared=len(pairs),
        differences=list(_differences(pairs)),
        scored=len(scores),
        right=sum(scores),
        device=made[0]["device"],
    )


def _seconds_per_token(text: Values) -> float | None:
    """Seconds a token after the first chunk, without prefill; None where there is no second."""
    arrivals, behind = text["arrivals"], sum(text["chunk_tokens"][1:])
    return (arrivals[-1] - arrivals[0]) / behind if behind else None


def _differences(pairs: Iterable[Pair]) -> Iterator[Difference]:
    """First differences of texts and target-only's. Of a text that was cut its part is compared."""
    for (key, ours), theirs in pairs:
        mine, other = ours["token_ids"], theirs["token_ids"]
        if "cancelled" in (ours["finish_reason"], theirs["finish_reason"]):
            mine, other = mine[: len(other)], other[: len(mine)]
        at = first_difference(mine, other)
        if at is not None:
            taken, own = (tokens[at] if at < len(tokens) else None for tokens in (mine, other))
            yield Difference(f"{key.prompt}, turn {key.turn + 1}", at, taken, own)


def _figure(record: Values) -> Figure:
    return Figure(**record | {"quality": Quality[record["quality"].upper()]})


def marked(rows: Iterable[Row]) -> list[Row]:
    """These rows with the Pareto set marked, by speed and by those costs that are known of all.

    Rows with too few texts, or whose target is not rented, are left out.
    """
    found = list(rows)
    places = [
        at
        for at, row in enumerate(found)
        if row.texts >= MIN_TEXTS and row.device and row.arm != AGAIN
    ]
    costs = [[-found[at].tokens_per_second.median] for at in places]
    for name in ("usd_per_million", "joules_per_million"):
        values = [found[at].costs[name].median.value for at in places]
        known = [value for value in values if value is not None]
        if len(known) == len(places):
            costs = [[*cost, value] for cost, value in zip(costs, known, strict=True)]
    for at, best in zip(places, pareto(costs), strict=True):
        found[at] = replace(found[at], pareto=best)
    return found
