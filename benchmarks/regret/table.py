"""What a study shows: the best arm of each cell, how far the adaptive one is from it, and what bets were worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import mean
from typing import Any

from benchmarks.regret.arms import ADAPTIVE, ALONE, ANYWHERE, ARMS, BETTING, WAITING, Arm
from benchmarks.regret.dial import Agreement
from benchmarks.regret.stage import CONTEXT, PROFILES
from benchmarks.regret.study import Cell, Played, Result
from inference.planner import Round, least_time, proactive_time, synchronous_time

GROUPS = {arm.name: arm.group for arm in ARMS}
OTHERS = [arm for arm in ARMS if not arm.ours]

VERIFY = PROFILES.target.seconds(1, 1, CONTEXT)
"""Seconds that the emulated target takes for a token by itself."""


def best(played: Played, among: Sequence[Arm]) -> str:
    """The arm that takes least time a token."""
    return min(
        (arm.name for arm in among if arm.name in played.results),
        key=lambda name: played.results[name].token_ms,
    )


def regret(played: Played, ours: Arm, among: Sequence[Arm]) -> float:
    """By how much more time our arm takes than the best of these, relative to it; negative where it is better."""
    return played.results[ours.name].token_ms / played.results[best(played, among)].token_ms - 1


def regret_here(played: Played) -> float:
    """Of the adaptive arm where the target has no draft beside it."""
    return regret(played, ADAPTIVE, across())


def regret_anywhere(played: Played) -> float:
    """Of the adaptive arm that may use the draft beside the target, against everything."""
    return regret(played, ANYWHERE, OTHERS)


@dataclass(frozen=True)
class Gain:
    """What bets brought, in milliseconds a token: measured between two runs, and by formula.

    predicted: by the planner's forecasts (inference/forecast.py) from the times and texts that the run without bets has measured.
    were_hits_whole: by T_pro against T_sync with drafting, tokens and hits as they came, had every outcome that was prepared for been a
    whole tree; it pays for no bet, and is out of reach of whoever has a draft of one call at a time.
    """

    measured: float
    predicted: float
    were_hits_whole: float

    @property
    def share(self) -> float | None:
        """Measured over predicted; None where nothing was to be gained."""
        return self.measured / self.predicted if self.predicted > 0.01 else None


def gain_of_bets(waiting: Result, betting: Result) -> Gain:
    """Of the arm that drafts ahead over the one that waits."""
    away = (waiting.seconds - waiting.drafted) / waiting.rounds
    made = Round(waiting.drafted / waiting.rounds, away, waiting.round_tokens)
    whole = synchronous_time(made, 0.0) - proactive_time(made, 0.0, betting.hit)
    assert waiting.foresight is not None, "an arm of ours has a planner"
    predicted = waiting.foresight.waiting - waiting.foresight.betting
    return Gain(waiting.token_ms - betting.token_ms, 1e3 * predicted, 1e3 * whole)


def bound_ms(played: Played, verify: float = VERIFY) -> float:
    """Below this no arm can come that drafts across the link and guesses as widely as these."""
    return 1e3 * least_time(played.agreement.miss, played.cell.round_trip / 1e3, verify)


def across(arms: Sequence[Arm] = OTHERS) -> list[Arm]:
    """Those with the draft on the user's machine, and the target by itself: what a user has whose target holds no draft."""
    return [arm for arm in arms if arm.crosses]


def record(studied: Sequence[Played], verify: float = VERIFY) -> list[dict[str, Any]]:
    """Everything, for JSON; times in milliseconds a token."""
    return [
        {
            **played.cell._asdict(),
            "agreement": asdict(played.agreement),
            "bound_ms": round(bound_ms(played, verify), 3),
            "arms": {
                name: {**asdict(result), "ms_per_token": round(result.token_ms, 3)}
                for name, result in played.results.items()
            },
            "best_across": best(played, across()),
            "best": best(played, OTHERS),
            "regret_across": round(regret_here(played), 4),
            "regret": round(regret_anywhere(played), 4),
            "bets": asdict(
                gain_of_bets(played.results[WAITING.name], played.results[BETTING.name])
            ),
        }
        for played in studied
    ]


def read_others(cells: Sequence[Mapping[str, Any]]) -> dict[Cell, Played]:
    """What record() wrote of the arms that are not ours."""
    others = {arm.name for arm in OTHERS}
    kept = {}
    for said in cells:
        cell = Cell(said["round_trip"], said["level"], said["temperature"])
        results = {
            name: Result(
                **{
                    field.name: figures[field.name]
                    for field in fields(Result)
                    if field.name != "foresight"
                }
            )
            for name, figures in said["arms"].items()
            if name in others
        }
        kept[cell] = Played(cell, Agreement(**said["agreement"]), results)
    return kept


def markdown(
    studied: Sequence[Played],
    verify: float = VERIFY,
    more: Callable[[Played], Mapping[str, str]] = lambda played: {},
) -> str:
    """One table for each temperature and agreement, a row for each round trip; more: further columns of a row."""
    lines: list[str] = []
    for temperature, level in dict.fromkeys(
        (played.cell.temperature, played.cell.level) for played in studied
    ):
        rows = [
            played
            for played in studied
            if (played.cell.temperature, played.cell.level) == (temperature, level)
        ]
        seen = rows[0].agreement
        guessed = f"first guess right {seen.first:.0%}, among eight {seen.covered:.1%}"
        guessed += "" if seen.distance is None else f", TV {seen.distance:.2f} at T = 0.7"
        told = [{**_row(played, verify), **more(played)} for played in rows]
        lines += [f"### T = {temperature:g}, {level} draft ({guessed})", "", *_table(told), ""]
    return "\n".join([*lines, *_summary(studied), ""])


def _row(played: Played, verify: float) -> Mapping[str, str]:
    results, groups = (
        played.results,
        {
            name: [arm for arm in OTHERS if arm.group == name]
            for name in dict.fromkeys(GROUPS.values())
        },
    )

    def shown(name: str) -> str:
        return f"{results[name].token_ms:.1f}"

    def named(group: str) -> str:
        name = best(played, groups[group])
        return f"{shown(name)} ({name.removeprefix('fused, ')})"

    gain = gain_of_bets(results[WAITING.name], results[BETTING.name])
    share = "" if gain.share is None else f"{gain.share:.0%}"
    return {
        "RTT ms": str(played.cell.round_trip),
        "chain": named("chain"),
        "tree": named("tree"),
        "one bet": shown("one bet (SpecEdge's policy)"),
        "AutoDraft": f"{shown(groups['AutoDraft'][0].name)} / {shown(groups['AutoDraft'][1].name)}",
        "target-only": shown(ALONE.name),
        "fused": named("fused"),
        "**adaptive**": f"**{shown(ADAPTIVE.name)}**",
        "regret": f"{regret_here(played):+.1%}",
        "**anywhere**": f"**{shown(ANYWHERE.name)}**",
        "regret there": f"{regret_anywhere(played):+.1%}",
        "no bets": shown(WAITING.name),
        "bets": shown(BETTING.name),
        "hits": f"{results[BETTING.name].hit:.0%}",
        "of formula": share,
        "bound": f"{bound_ms(played, verify):.1f}",
    }


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield "| " + " | ".join(rows[0]) + " |"
    yield "|" + "---|" * len(rows[0])
    for row in rows:
        yield "| " + " | ".join(row.values()) + " |"


def _summary(studied: Sequence[Played]) -> Iterator[str]:
    for said, of in (
        ("where the target has no draft", regret_here),
        ("where it has one", regret_anywhere),
    ):
        against = [(of(played), played.cell) for played in studied]
        worst, cell = max(against)
        within = sum(value <= 0.05 for value, _ in against)
        yield f"Adaptive within 5 % of the best arm {said}: in {within} of {len(against)} cells; worst {worst:+.1%} in {cell}."
    yield from _on_bets(
        [
            gain_of_bets(played.results[WAITING.name], played.results[BETTING.name])
            for played in studied
        ]
    )
    waiting, betting = (
        mean(abs(_error(played.results[arm.name], arm is BETTING)) for played in studied)
        for arm in (WAITING, BETTING)
    )
    yield f"The planner's forecasts of drafting here are off by {waiting:.1%} without bets and {betting:.1%} with them, on average."


def _on_bets(gains: Sequence[Gain]) -> Iterator[str]:
    shares = [gain.share for gain in gains if gain.share is not None]
    if shares:
        reached, whole = (
            sum(share >= 0.85 for share in shares),
            sum(gain.measured >= 0.85 * gain.were_hits_whole for gain in gains),
        )
        yield f"Bets bring at least 85 % of what the planner's formula predicts in {reached} of {len(shares)} cells; least {min(shares):.0%}."
        yield f"Had every outcome that was prepared for been a whole tree for nothing, 85 % of that would be reached in {whole} of {len(gains)}."


def _error(result: Result, betting: bool) -> float:
    """Of what the arm's planner foresaw for it, relative to what it took."""
    assert result.foresight is not None, "an arm of ours has a planner"
    return 1e3 * result.foresight[betting] / result.token_ms - 1
