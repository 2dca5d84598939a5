"""The grid of cells, and what every arm makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fnmatch import fnmatch
from itertools import pairwise, product
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.regret.arms import Arm, Foresight, Player
from benchmarks.regret.dial import LEVELS, Agreement, Text
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import Pair, Stage, virtual_stage
from benchmarks.regret.texts import texts_of
from inference.errors import InvalidRequest

ROUND_TRIPS = (0, 5, 20, 40, 80, 160, 300)
"""Milliseconds."""

TEMPERATURES = (0.0, 0.8)

_TOGETHER = 1e-3
"""Tokens that come within so many seconds of each other are of one round."""


class Cell(NamedTuple):
    """round_trip: milliseconds.  level: name of the draft's agreement."""

    round_trip: int
    level: str
    temperature: float

    def __str__(self) -> str:
        return f"{self.round_trip}:{self.level}:{self.temperature:g}"


class Reading(NamedTuple):
    """A text as an arm made it, from the first round's tokens on, and its whole length. differs_at: the first token that is not the
    target's own, None where all are."""

    seconds: float
    tokens: int
    rounds: int
    drafted: float
    length: int
    differs_at: int | None


@dataclass(frozen=True)
class Result:
    """What an arm made of a cell, added up over texts, from the first round's tokens on. drafted: seconds that the draft here was busy,
    while somebody waited for it or not."""

    seconds: float
    tokens: int
    rounds: int
    drafted: float
    hits: int = 0
    bet_rounds: int = 0
    foresight: Foresight | None = None

    def over(self, round_trip: float) -> Result:
        """The same rounds with so many more seconds in each."""
        return replace(self, seconds=self.seconds + self.rounds * round_trip)

    @property
    def token_ms(self) -> float:
        return 1e3 * self.seconds / self.tokens

    @property
    def round_tokens(self) -> float:
        return self.tokens / self.rounds

    @property
    def hit(self) -> float:
        """Share of rounds whose outcome was prepared for."""
        return self.hits / self.bet_rounds if self.bet_rounds else 0.0


@dataclass(frozen=True)
class Played:
    """A cell's results by arm, and how well its pair agrees on its texts."""

    cell: Cell
    agreement: Agreement
    results: dict[str, Result]


NONE: Mapping[Cell, Played] = MappingProxyType({})


class NotTheTargetsText(Exception):
    """An arm's output differs from the target's own: a fault that no study may pass over."""


def play(arm: Arm, stage: Stage, texts: Sequence[Text]) -> Result:
    """One arm through all texts of a cell. Raises NotTheTargetsText unless every one is the target's own."""
    player = arm.begin(stage)
    readings = []
    for text in texts:
        made = read(player, stage, text)
        if made.differs_at is not None or made.length != len(text.tokens):
            same = made.length if made.differs_at is None else made.differs_at
            raise NotTheTargetsText(
                f"{arm.name}: {made.length} tokens, the target says {len(text.tokens)}; the first {same} are the same"
            )
        readings.append(made)
    return summed(readings, player, texts[0].params.greedy)


def read(player: Player, stage: Stage, text: Text) -> Reading:
    """Let an arm make a text, which need not be the target's own."""
    made, moments, first, drafted = list[int](), list[float](), 0, 0.0
    for tokens in player.play(text):
        made += tokens
        moments.append(stage.now())
        if moments[-1] - moments[0] < _TOGETHER:
            first, drafted = len(made), stage.drafted()
    drafted = stage.drafted() - drafted
    rounds = sum(later - earlier >= _TOGETHER for earlier, later in pairwise(moments))
    differs_at = next(
        (
            index
            for index, (ours, theirs) in enumerate(zip(made, text.tokens, strict=False))
            if ours != theirs
        ),
        None,
    )
    return Reading(
        moments[-1] - moments[0], len(made) - first, rounds, drafted, len(made), differs_at
    )


def summed(readings: Sequence[Reading], player: Player, greedy: bool) -> Result:
    """Texts of one arm, added up."""
    seconds, tokens, rounds, drafted = (
        sum(getattr(one, name) for one in readings)
        for name in ("seconds", "tokens", "rounds", "drafted")
    )
    return Result(
        seconds,
        tokens,
        rounds,
        drafted,
        player.bets.hits,
        player.bets.rounds,
        player.foresee(greedy),
    )


def cells(patterns: Sequence[str] = ("*",), round_trips: Sequence[int] = ROUND_TRIPS) -> list[Cell]:
    """Those of the grid whose names (RTT:LEVEL:TEMPERATURE) match a pattern, as `80:mid:*`."""
    grid = [
        Cell(trip, level.name, temperature)
        for temperature, level, trip in product(TEMPERATURES, LEVELS, round_trips)
    ]
    return [cell for cell in grid if any(fnmatch(str(cell), pattern) for pattern in patterns)]


class Study:
    """Pairs and their texts, made when first asked for. load: a fresh memory of the target.  encode: text into its tokens."""

    def __init__(
        self,
        load: Callable[[], Prefixes],
        encode: Callable[[str], Sequence[int]],
        prompts: Sequence[str],
        tokens: int,
    ) -> None:
        self._load, self._encode, self._prompts, self._tokens = load, encode, prompts, tokens
        self._temperature: float | None = None
        self._pairs: dict[str, Pair] = {}

    def pair(self, cell: Cell) -> Pair:
        """Of a cell. Pairs of one temperature share the target's memory; of another one they are forgotten."""
        if cell.temperature != self._temperature:
            self._temperature, prefixes = cell.temperature, self._load()
            texts = texts_of(prefixes, self._encode, cell.temperature, self._prompts, self._tokens)
            self._pairs = {level.name: Pair(prefixes, level, texts) for level in LEVELS}
        return self._pairs[cell.level]

    def play(
        self, among: Sequence[Cell], arms: Sequence[Arm], kept: Mapping[Cell, Played] = NONE
    ) -> Iterator[Played]:
        """Every arm in every cell; of blind ones the rounds are played once for all round trips. kept: results that need no playing."""
        known: dict[tuple[str, str, float], Result] = {}
        for cell in among:
            pair, trip = self.pair(cell), cell.round_trip / 1e3
            results = dict(self._fitting(kept[cell], pair).results) if cell in kept else {}
            for arm in (arm for arm in arms if arm.name not in results):
                key = (arm.name, cell.level, cell.temperature)
                if arm.blind and key not in known:
                    known[key] = play(arm, virtual_stage(pair, 0.0), pair.texts)
                results[arm.name] = (
                    known[key].over(trip * arm.crosses)
                    if arm.blind
                    else play(arm, virtual_stage(pair, trip), pair.texts)
                )
            yield Played(cell, pair.agreement, results)

    def _fitting(self, kept: Played, pair: Pair) -> Played:
        """Raises InvalidRequest for results of other texts."""
        differences = [
            abs(mine - theirs)
            for mine, theirs in zip(astuple(pair.agreement), astuple(kept.agreement), strict=True)
        ]
        if max(differences) > 1e-6:
            raise InvalidRequest(
                f"{kept.cell}: what is kept was played with other texts or drafts, which agreed to {kept.agreement}"
            )
        return kept
