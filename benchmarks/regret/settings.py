"""What is played: cells, how fast their machines are, and series of texts."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import product
from typing import NamedTuple

from benchmarks.regret.dial import MISSES, USELESS
from benchmarks.regret.stage import PROFILES, Profiles
from benchmarks.regret.study import ROUND_TRIPS, TEMPERATURES, Cell
from benchmarks.regret.texts import HELD_OUT, HELD_OUT_SEEDS, PROMPTS, SEED

FAST = 0.5
"""Seconds of a fast target, and of the draft beside it, as a part of those of the study's."""


class Setting(NamedTuple):
    """A cell, and how fast its machines are.

    draft: seconds of a call of the draft, as a multiple of the study's
    """

    cell: Cell
    draft: float = 1.0
    fast_target: bool = False

    def __str__(self) -> str:
        draft = f":x{self.draft:g}" if self.draft != 1 else ""
        return f"{self.cell}{draft}{':fast' * self.fast_target}"

    def matches(self, patterns: Sequence[str]) -> bool:
        """Whether one of them fits its name."""
        return any(fnmatch(str(self), pattern) for pattern in patterns)

    @property
    def profiles(self) -> Profiles:
        """The study's profiles with the speeds of this setting."""
        here = PROFILES.slower(self.draft).here
        if not self.fast_target:
            return PROFILES._replace(here=here)
        return PROFILES.slower(FAST)._replace(here=here)

    @property
    def machines(self) -> Setting:
        """This setting over a link without delay: all that a blind arm depends on."""
        return self._replace(cell=self.cell._replace(round_trip=0))


class Series(NamedTuple):
    """Texts that a player goes through one after the other.

    seed: that of the first text
    tuned: names of settings in which something was chosen on these texts
    """

    name: str
    prompts: Sequence[str]
    seed: int
    tuned: Sequence[str] = ()


TUNED = ("*:mid:0", "*:mid:0.8", "*:mid:*:x0.25")
"""Settings on whose main texts the floor of a sent node, the least gain of a call and its width
were chosen.
"""

MAIN = Series("main", PROMPTS, SEED, TUNED)

HELD_OUT_SERIES = tuple(Series(f"held out, seed {seed}", HELD_OUT, seed) for seed in HELD_OUT_SEEDS)

SERIES = (MAIN, *HELD_OUT_SERIES)

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
    found = [Setting(Cell(trip, USELESS.name, 0.0)) for trip in ROUND_TRIPS]
    for temperature in TEMPERATURES:
        found += [Setting(Cell(trip, "mid", temperature)) for trip in ROUND_TRIPS]
        found += [Setting(Cell(trip, MISSES.name, temperature)) for trip in (20, 80, 300)]
        found += [
            Setting(Cell(trip, "mid", temperature), draft)
            for draft, trip in product((0.5, 0.25), (5, 20, 40, 80))
        ]
        found += [Setting(Cell(trip, "mid", temperature), fast_target=True) for trip in ROUND_TRIPS]
    return [one for one in found if one.matches(patterns)]
