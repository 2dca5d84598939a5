"""Every arm in every setting, on every series of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.regret.arms import ALONE, OURS, RIVALS, SYNCHRONOUS, Arm
from benchmarks.regret.dial import Agreement
from benchmarks.regret.settings import MAIN, Series, Setting
from benchmarks.regret.stage import Pair, virtual_stage
from benchmarks.regret.study import Result, Study, play

OTHERS = (*SYNCHRONOUS, *RIVALS)
"""What a target that waits can do with a draft across the link."""


@dataclass(frozen=True)
class Played:
    """What the arms made of a series in a setting, and how well its pair agrees on these texts."""

    setting: Setting
    series: Series
    agreement: Agreement
    results: dict[str, Result]

    @property
    def tuned(self) -> bool:
        """Something was chosen on these texts in this setting."""
        return self.setting.matches(self.series.tuned)

    def best(self, among: Sequence[Arm]) -> str | None:
        """The arm that takes least time a token, of those that were played."""
        names = [arm.name for arm in among if arm.name in self.results]
        return min(names, key=lambda name: self.results[name].token_ms, default=None)


class Grid:
    """Plays settings. study: of a series.  others: synchronous arms and rivals; on the main texts
    all are played, on the held-out ones who was best on the main ones.
    """

    def __init__(
        self,
        study: Callable[[Series], Study],
        ours: Sequence[Arm] = OURS,
        others: Sequence[Arm] = OTHERS,
    ) -> None:
        self._study, self._ours, self._others = study, ours, others
        self._best: dict[Setting, Arm] = {}
        self._blind: dict[tuple[str, str, Setting], Result] = {}

    def play(self, among: Sequence[Setting], series: Sequence[Series]) -> Iterator[Played]:
        """Series by series. Raises NotTheTargetsText."""
        for texts in series:
            study = self._study(texts)
            for setting in among:
                yield self._play(setting, texts, study.pair(setting.cell))

    def _play(self, setting: Setting, series: Series, pair: Pair) -> Played:
        best = self._best.get(setting)
        others = self._others if series is MAIN or best is None else [best]
        results = {
            arm.name: self._result(arm, setting, series, pair)
            for arm in (ALONE, *self._ours, *others)
        }
        if series is MAIN and others:
            self._best[setting] = min(others, key=lambda arm: results[arm.name].token_ms)
        return Played(setting, series, pair.agreement, results)

    def _result(self, arm: Arm, setting: Setting, series: Series, pair: Pair) -> Result:
        """What an arm took in a setting. The rounds of a blind arm serve all round trips."""
        trip = setting.cell.round_trip / 1e3
        if not arm.blind:
            return play(arm, virtual_stage(pair, trip, setting.profiles), pair.texts)
        key = arm.name, series.name, setting.machines
        if key not in self._blind:
            stage = virtual_stage(pair, 0.0, setting.profiles)
            self._blind[key] = play(arm, stage, pair.texts)
        return self._blind[key].over(trip)
