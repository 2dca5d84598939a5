"""The readings of an arm: what it makes of the texts of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness import cpu_decoder
from benchmarks.own_texts import Text, generate
from benchmarks.regret.pair import LEVELS, TARGET, PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.settings import Series, Setting
from benchmarks.regret.stage import (
    ARMS,
    SEQUENCE_LENGTH,
    Arm,
    Reading,
    Stage,
    serve,
    virtual_server,
)
from benchmarks.regret.texts import PROMPTS, SEED, TOKENS
from inference.loop.decode import Loop
from inference.loop.draft_thread import Drafter, inline
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED

_TOGETHER = 1e-3
"""Tokens that come within so many seconds of each other are of one round."""


@dataclass(frozen=True)
class Result:
    """Readings of an arm in a cell, text by text."""

    readings: tuple[Reading, ...]

    def total(self, name: str) -> float:
        """Sum of a field over all texts."""
        return float(sum(getattr(one, name) for one in self.readings))

    def each(self, name: str) -> float:
        """Sum of a field over all texts, divided by the tokens."""
        return self.total(name) / self.total("tokens")

    @property
    def token_ms(self) -> float:
        return 1e3 * self.each("seconds")


@dataclass(frozen=True)
class Played:
    """Results of a series in a setting, by arm."""

    setting: Setting
    series: Series
    results: dict[str, Result]

    @property
    def tuned(self) -> bool:
        """Something was chosen on these texts in this setting."""
        return self.setting.matches(self.series.tuned)

    def record(self) -> dict[str, Any]:
        """Everything, for JSON: a row of Reading for each text."""
        return {
            "setting": str(self.setting),
            "series": self.series.name,
            "tuned": self.tuned,
            "columns": Reading._fields,
            "arms": {name: list(result.readings) for name, result in self.results.items()},
        }


class NotTheTargetsText(Exception):
    """An arm's output differs from the target's own: a fault that no study may pass over."""


def play(
    among: Sequence[Setting], series: Sequence[Series], study: Callable[[Series], Study]
) -> Iterator[Played]:
    """Every arm in every setting, series by series. Raises NotTheTargetsText.

    study: of a series
    """
    for texts in series:
        prepared = study(texts)
        for setting in among:
            pair = prepared.pair(setting)
            yield Played(setting, texts, {arm.name: _result(arm, setting, pair) for arm in ARMS})


def _result(arm: Arm, setting: Setting, pair: Pair) -> Result:
    trip = setting.round_trip / 1e3
    server = virtual_server(pair.target.apart(), pair.vocabulary, setting.profiles)
    stage = Stage(server, pair.draft.apart(), trip, setting.profiles)
    drafter = inline(arm.propose(stage))
    return Result(tuple(read(arm.name, drafter, stage, text) for text in pair.texts))


def read(name: str, drafter: Drafter, stage: Stage, text: Text) -> Reading:
    """Let an arm generate a text. Raises NotTheTargetsText unless it is the target's own."""
    made, moments, first = list[int](), list[float](), 0
    began, before = stage.now(), stage.counts()
    for tokens in _tokens(drafter, stage, text):
        made += tokens
        moments.append(stage.now())
        if moments[-1] - moments[0] < _TOGETHER:
            first, before = len(made), stage.counts()
    if tuple(made) != text.tokens:
        raise NotTheTargetsText(f"{name}: {made}, the target says {list(text.tokens)}")
    counts = (after - start for after, start in zip(stage.counts(), before, strict=True))
    seconds, whole = moments[-1] - moments[0], moments[-1] - began
    return Reading(seconds, len(made) - first, len(made), whole, *counts)


def _tokens(drafter: Drafter, stage: Stage, text: Text) -> Iterator[Sequence[int]]:
    order = Decode(len(text.prompt) + len(text.tokens))
    with closing(stage.session) as session:
        loop = Loop(text.prompt, text.params, session, order, drafter, stage.now)
        with closing(loop):
            yield from (step.tokens for step in loop.steps() if step.tokens)
        loop.drafting.settle()


class Pair(NamedTuple):
    """A target, a draft of one level of agreement, and the target's own texts."""

    target: PrefixModel
    draft: PrefixModel
    texts: Sequence[Text]
    vocabulary: int


class Study:
    """Pairs of a target and their texts, made when first asked for.

    tokens: length of a text
    seed: that of the first text
    """

    def __init__(self, target: Path, prompts: Sequence[str], tokens: int, seed: int) -> None:
        self._tokenizer = Tokenizer(target)
        self.vocabulary = self._tokenizer.vocabulary
        self._decoder = cpu_decoder(target, SEQUENCE_LENGTH, self.vocabulary, torch.float32)
        self._prompts, self._tokens, self._seed = prompts, tokens, seed
        self._temperature: float | None = None
        self._pairs: dict[str, Pair] = {}

    def pair(self, setting: Setting) -> Pair:
        """The pair of a setting. Pairs of one temperature share what the target has computed; those
        of the temperature before are forgotten.
        """
        if setting.temperature != self._temperature:
            self._temperature, self._pairs = setting.temperature, {}
            self._prefixes = Prefixes(self._decoder)
            self._texts = [
                self._text(prompt, self._seed + index) for index, prompt in enumerate(self._prompts)
            ]
        if setting.level not in self._pairs:
            target, draft = (
                PrefixModel(self._prefixes, level) for level in (TARGET, LEVELS[setting.level])
            )
            self._pairs[setting.level] = Pair(target, draft, self._texts, self.vocabulary)
        return self._pairs[setting.level]

    def _text(self, prompt: str, seed: int) -> Text:
        """A text that every arm has to generate."""
        assert self._temperature is not None
        params = SamplingParams(self._temperature, seed=seed).on_the_wire()
        engine = serve(PrefixModel(self._prefixes), self.vocabulary)
        ids = tuple(self._tokenizer.encode(prompt))
        return Text(ids, params, generate(engine, ids, params, self._tokens))


def embedded_study(
    prompts: Sequence[str] = PROMPTS, tokens: int = TOKENS, seed: int = SEED
) -> Study:
    """The study of the embedded target on these prompts."""
    return Study(EMBEDDED / "target", prompts, tokens, seed)
