"""What an arm makes of the texts of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from benchmarks.harness import cpu_decoder
from benchmarks.regret.arms import Arm, Player
from benchmarks.regret.dial import NAMED, Text
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import SEQUENCE_LENGTH, Pair, Stage
from benchmarks.regret.texts import PROMPTS, SEED, TOKENS, texts_of
from inference.text import Tokenizer
from outrider.models.loading import EMBEDDED

ROUND_TRIPS = (0, 5, 20, 40, 80, 160, 300)
"""Milliseconds."""

TEMPERATURES = (0.0, 0.8)

_COUNTED = ("bytes_up", "bytes_down", "messages_up", "forwards", "lone", "nodes")

_TOGETHER = 1e-3
"""Tokens that come within so many seconds of each other are of one round."""


class Cell(NamedTuple):
    """Where an arm is measured.

    round_trip: milliseconds
    level: name of the draft's agreement
    """

    round_trip: int
    level: str
    temperature: float

    def __str__(self) -> str:
        return f"{self.round_trip}:{self.level}:{self.temperature:g}"


class Reading(NamedTuple):
    """A text as an arm made it. Seconds, tokens, rounds and counts begin behind the first round.

    length: tokens of the whole text
    differs_at: place of the first token that is not the target's own, None where all are
    whole_seconds: seconds from the prompt on
    drafted, calls, proposed: as in Spent; the fields behind them as in Traffic
    """

    seconds: float
    tokens: int
    rounds: int
    length: int
    differs_at: int | None
    whole_seconds: float
    drafted: float
    calls: int
    proposed: int
    bytes_up: int
    bytes_down: int
    messages_up: int
    forwards: int
    lone: int
    nodes: int


@dataclass(frozen=True)
class Result:
    """What an arm made of a cell, text by text."""

    readings: tuple[Reading, ...]

    def over(self, round_trip: float) -> Result:
        """These texts with so many more seconds in each round."""
        return Result(
            tuple(
                one._replace(seconds=one.seconds + one.rounds * round_trip) for one in self.readings
            )
        )

    def sped_up(self, times: float) -> Result:
        """These texts with all times divided by a factor."""
        return Result(
            tuple(
                one._replace(
                    seconds=one.seconds / times,
                    whole_seconds=one.whole_seconds / times,
                    drafted=one.drafted / times,
                )
                for one in self.readings
            )
        )

    def total(self, name: str) -> float:
        """Sum of a field over all texts."""
        return float(sum(getattr(one, name) for one in self.readings))

    def each(self, name: str) -> float:
        """Sum of a field over all texts, divided by the tokens."""
        return self.total(name) / self.total("tokens")

    @property
    def token_ms(self) -> float:
        return 1e3 * self.each("seconds")

    @property
    def by_text(self) -> list[float]:
        """Milliseconds a token."""
        return [1e3 * one.seconds / one.tokens for one in self.readings]


class NotTheTargetsText(Exception):
    """An arm's output differs from the target's own: a fault that no study may pass over."""


def play(arm: Arm, stage: Stage, texts: Sequence[Text]) -> Result:
    """One arm through all texts of a cell. Raises NotTheTargetsText unless every one is the
    target's own.
    """
    return Result(tuple(checked(arm.name, arm.begin(stage), stage, texts)))


def checked(name: str, player: Player, stage: Stage, texts: Sequence[Text]) -> list[Reading]:
    """The texts one by one. Raises NotTheTargetsText unless every one is the target's own."""
    readings = []
    for text in texts:
        made = read(player, stage, text)
        if made.differs_at is not None or made.length != len(text.tokens):
            same = made.length if made.differs_at is None else made.differs_at
            raise NotTheTargetsText(
                f"{name}: {made.length} tokens, the target says {len(text.tokens)}; the first "
                f"{same} are the same"
            )
        readings.append(made)
    return readings


def read(player: Player, stage: Stage, text: Text) -> Reading:
    """Let an arm make a text, which need not be the target's own."""
    made, moments, first = list[int](), list[float](), 0
    began, before = stage.now(), stage.spent()
    for tokens in player.play(text):
        made += tokens
        moments.append(stage.now())
        if moments[-1] - moments[0] < _TOGETHER:
            first, before = len(made), stage.spent()
    after = stage.spent()
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
        moments[-1] - moments[0],
        len(made) - first,
        rounds,
        len(made),
        differs_at,
        moments[-1] - began,
        after.drafted - before.drafted,
        after.calls - before.calls,
        after.proposed - before.proposed,
        *(getattr(after.traffic, name) - getattr(before.traffic, name) for name in _COUNTED),
    )


class Study:
    """Pairs and their texts, made when first asked for.

    load: returns a fresh memory of the target
    encode: turns text into tokens
    tokens: length of a text
    seed: that of the first text
    """

    def __init__(
        self,
        load: Callable[[], Prefixes],
        encode: Callable[[str], Sequence[int]],
        prompts: Sequence[str],
        tokens: int,
        seed: int = SEED,
    ) -> None:
        self._load, self._encode, self._prompts, self._tokens = load, encode, prompts, tokens
        self._seed = seed
        self._temperature: float | None = None
        self._prefixes, self._texts = load(), tuple[Text, ...]()
        self._pairs: dict[str, Pair] = {}

    @property
    def prefixes(self) -> Prefixes:
        """The target's memory of the temperature that was asked for last."""
        return self._prefixes

    def pair(self, cell: Cell) -> Pair:
        """The pair of a cell. Pairs of one temperature share the target's memory; those of the
        temperature before are forgotten.
        """
        if cell.temperature != self._temperature:
            self._temperature, self._prefixes = cell.temperature, self._load()
            self._texts = texts_of(
                self._prefixes,
                self._encode,
                cell.temperature,
                self._prompts,
                self._tokens,
                self._seed,
            )
            self._pairs = {}
        if cell.level not in self._pairs:
            self._pairs[cell.level] = Pair(self._prefixes, NAMED[cell.level], self._texts)
        return self._pairs[cell.level]


def embedded_study(
    prompts: Sequence[str] = PROMPTS, tokens: int = TOKENS, seed: int = SEED
) -> Study:
    """The study of the embedded target on these prompts.

    tokens: length of a text
    seed: that of the first text
    """
    tokenizer = Tokenizer(EMBEDDED / "target")
    decoder = cpu_decoder(EMBEDDED / "target", SEQUENCE_LENGTH, tokenizer.vocabulary, torch.float32)
    return Study(lambda: Prefixes(decoder), tokenizer.encode, prompts, tokens, seed)
