"""Figures of a run by kind of text and arm. Speeds are compared by pairs of texts: geometric means
with the interval that holds the mean with a confidence of 0.95.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import geometric_mean, median
from typing import NamedTuple

from inference.cost.quantity import Figure, Quality
from outrider.measure.journal import TextKey, Values
from outrider.measure.statistics import bootstrap_median, geometric_interval, median_figure
from outrider.text.pieces import gaps_between

BASELINE = "target-only"
"""Name of the arm that all others are compared with."""

ALL = "all"
"""Name of all kinds together."""

COSTS = ("usd_per_million", "joules_per_million")
"""Figures of a text that may be unavailable, with the reason."""

Pair = tuple[tuple[TextKey, Values], Values]
"""A text with its key, and the one that it is compared with."""


class SpeedRatio(NamedTuple):
    """A geometric mean of ratios of speeds, and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def speed_ratio(pairs: Iterable[Pair]) -> SpeedRatio | None:
    """Speed of the first text of each pair over that of the second; None without pairs.

    All turns and repetitions of a prompt count as one, since they are not independent.
    """
    of_prompt = defaultdict[str, list[float]](list)
    for (key, ours), theirs in pairs:
        of_prompt[key.prompt].append(ours["tokens_per_second"] / theirs["tokens_per_second"])
    each = [geometric_mean(ratios) for ratios in of_prompt.values()]
    if not each:
        return None
    mean, (low, high) = geometric_mean(each), geometric_interval(each)
    return SpeedRatio(mean, min(low, mean), max(high, mean))  # equal ones differ by rounding


def kinds_of(keys: Iterable[TextKey]) -> list[str]:
    """The kinds of these texts, and all of them together where there are several."""
    kinds = list(dict.fromkeys(key.kind for key in keys))
    return [*kinds, ALL] if len(kinds) > 1 else kinds


def arms_of(keys: Iterable[TextKey]) -> list[str]:
    """The arms of these texts, target-only first."""
    return sorted({key.arm for key in keys}, key=lambda arm: (arm != BASELINE, arm))


def by_kind(texts: Mapping[TextKey, Values], *, starts: bool) -> Iterator[Values]:
    """Yield the figures of every kind and arm.

    starts: whether each repetition began without kept times, and is told by itself
    """
    for repeat in sorted({key.repeat for key in texts}) if starts else [None]:
        which = "" if repeat is None else f", start {repeat + 1}"
        here = {key: text for key, text in texts.items() if repeat in (None, key.repeat)}
        for kind in kinds_of(here):
            for arm in arms_of(here):
                mine = [one for one in here.items() if one[0].arm == arm]
                mine = [one for one in mine if kind in (ALL, one[0].kind)]
                if mine:
                    yield {"kind": f"{kind}{which}", "arm": arm, **_figures(mine, texts)}


def _figures(mine: Sequence[tuple[TextKey, Values]], texts: Mapping[TextKey, Values]) -> Values:
    """Figures of some texts of one arm: times in seconds, traffic by the token."""
    beside = [(one, texts.get(one[0]._replace(arm=BASELINE))) for one in mine]
    pairs = [(one, alone) for one, alone in beside if alone is not None]
    made = [text for _, text in mine]
    tokens = sum(len(text["token_ids"]) for text in made)
    forwards = sum(text["forwards"] for text in made)
    gaps = gaps_between(text["arrivals"] for text in made)
    speed = None if mine[0][0].arm == BASELINE else speed_ratio(pairs)
    at_depth = zip_longest(*(text["accepted_at_depth"] for text in made), fillvalue=0)
    scores = [text["score"] for text in made if text["score"] is not None]
    return {
        "prompts": len({key.prompt for key, _ in mine}),
        "texts": len(mine),
        "tokens": tokens,
        "speed": speed and speed._asdict(),  # over target-only
        "tokens_per_second": bootstrap_median([one["tokens_per_second"] for one in made])._asdict(),
        "acceptance_length": tokens / forwards if forwards else 0.0,
        "acceptance_by_depth": [sum(at) / forwards for at in at_depth],  # share of forwards
        "first_token": median(text["time_to_first_token"] for text in made),
        **{f"gap_{name}": gap for name, gap in gaps._asdict().items()},
        "bytes_up": sum(text["bytes_up"] for text in made) / tokens,
        "bytes_down": sum(text["bytes_down"] for text in made) / tokens,
        **{name: median_figure([_figure(text[name]) for text in made]).record() for name in COSTS},
        "compared_texts": len(pairs),
        "equal_texts": sum(one["token_ids"] == alone["token_ids"] for (_, one), alone in pairs),
        "scored": len(scores),
        "right": sum(scores),
    }


def _figure(record: Values) -> Figure:
    return Figure(**record | {"quality": Quality[record["quality"].upper()]})
