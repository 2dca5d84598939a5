"""Settings of the study: where arms are measured, how fast machines are, and series of texts."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import product
from typing import NamedTuple

from benchmarks.regret.pair import MISSES, USELESS
from benchmarks.regret.stage import PROFILES, Profiles
from benchmarks.regret.texts import HELD_OUT, HELD_OUT_SEEDS, PROMPTS, SEED

ROUND_TRIPS = (0, 5, 20, 40, 80, 160, 300)
"""Milliseconds."""


class Setting(NamedTuple):
    """A cell of the regret study: link, draft, temperature and target.

    round_trip: milliseconds
    level: name of the draft's agreement
    draft: seconds of a call of the draft, as a multiple of the study's
    fast_target: it takes half the study's seconds
    """

    round_trip: int
    level: str
    temperature: float
    draft: float = 1.0
    fast_target: bool = False

    def __str__(self) -> str:
        draft = f":x{self.draft:g}" if self.draft != 1 else ""
        cell = f"{self.round_trip}:{self.level}:{self.temperature:g}"
        return f"{cell}{draft}{':fast' * self.fast_target}"

    def matches(self, patterns: Sequence[str]) -> bool:
        """Whether one of them fits its name."""
        return any(fnmatch(str(self), pattern) for pattern in patterns)

    @property
    def profiles(self) -> Profiles:
        """The study's profiles with the speeds of this setting."""
        target, here = PROFILES
        return Profiles(target.slower(0.5 if self.fast_target else 1.0), here.slower(self.draft))


class Series(NamedTuple):
    """Texts that a player goes through one after the other.

    seed: that of the first text
    tuned: names of settings in which something was chosen on these texts
    """

    name: str
    prompts: Sequence[str]
    seed: int
    tuned: Sequence[str] = ()


MAIN = Series("main", PROMPTS, SEED, ("*:mid:0", "*:mid:0.8", "*:mid:*:x0.25"))
"""On its tuned settings the floor of a sent node, the least gain of a call and its width were
chosen.
"""

SERIES = (MAIN, *(Series(f"held out, seed {seed}", HELD_OUT, seed) for seed in HELD_OUT_SEEDS))

DOZEN = (
    *("0:mid:0", "20:mid:0", "80:mid:0", "300:mid:0", "20:mid:0.8", "80:mid:0.8"),
    *("20:misses:0", "80:misses:0.8", "20:useless:0", "300:useless:0"),
    *("20:mid:0:x0.25", "40:mid:0.8:fast"),
)
"""Names of the settings that are played for every change."""


def settings(patterns: Sequence[str] = ("*",)) -> list[Setting]:
    """The settings of the growing tree's first measurement, and some with a useless draft. All of
    a temperature follow each other.

    patterns: of their names, such as `80:mid:*` and `*:x0.25`
    """
    every = [Setting(trip, USELESS.name, 0.0) for trip in ROUND_TRIPS]
    for temperature in (0.0, 0.8):
        every += [Setting(trip, "mid", temperature) for trip in ROUND_TRIPS]
        every += [Setting(trip, MISSES.name, temperature) for trip in (20, 80, 300)]
        every += [
            Setting(trip, "mid", temperature, draft)
            for draft, trip in product((0.5, 0.25), (5, 20, 40, 80))
        ]
        every += [Setting(trip, "mid", temperature, fast_target=True) for trip in ROUND_TRIPS]
    return [setting for setting in every if setting.matches(patterns)]
