"""The study on real models, in real time: what a token takes across an emulated link, with every arm on the same texts.

The arms take turns on every text, in an order that changes; what one has learnt in a text serves its next, within a cell. The target has
the prompt's keys before every turn, and a text counts from its first round's tokens on, as on the virtual clock. Each is compared with what
the target says alone. In bfloat16 a near-tie may fall otherwise in a pass of another shape: such texts are counted, and their times kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks.regret import table
from benchmarks.regret.arms import ADAPTIVE, ALONE, ANYWHERE, ARMS, BETTING, WAITING, Arm
from benchmarks.regret.dial import GUESSES, Agreement, Text
from benchmarks.regret.stage import Stage
from benchmarks.regret.study import ROUND_TRIPS, TEMPERATURES, Cell, Played, Reading, read, summed
from benchmarks.regret.two_cores import Bench
from inference.backends import Model
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree

LEVEL = "pair"
"""The agreement of every cell: that of the two models."""

CELLS = tuple(f"{trip}:{LEVEL}:*" for trip in (0, 20, 80, 300))
"""Those that are played unless others are asked for."""

TOKENS = 32
"""Of each text."""

WARM_UP_TOKENS = 8
"""Of the first text, made by every arm before it begins: a machine's first calls of a kind take longer."""

_NAMES = (
    *("chain 1", "chain 2", "chain 4", "chain 8", "chain 16"),
    *("tree 8x3", "tree 16x4", "tree 32x5", "tree 32x9", "tree 64x6"),
    *(
        "one bet (SpecEdge's policy)",
        "AutoDraft's rule",
        "AutoDraft's rule, round trip known",
        ALONE.name,
    ),
    *("fused, chain 4", "fused, tree 16x4", "fused, tree 32x5"),
    *(ANYWHERE.name, ADAPTIVE.name, BETTING.name, WAITING.name),
)
COMPARED = tuple(arm for arm in ARMS if arm.name in _NAMES)
"""The arms that are played: in real time every one of them costs minutes."""


class Said(NamedTuple):
    """What the target says by itself, and how well the draft foresees it."""

    texts: tuple[Text, ...]
    agreement: Agreement


@dataclass(frozen=True)
class PlayedTruly(Played):
    """A cell with every arm's readings, one a text."""

    readings: dict[str, list[Reading]]

    @property
    def differing(self) -> dict[str, int]:
        """Texts that are not the target's own, by the arms that made any."""
        counts = {
            name: sum(one.differs_at is not None for one in made)
            for name, made in self.readings.items()
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def texts(self) -> int:
        """Of all arms."""
        return sum(map(len, self.readings.values()))


class ModelStudy:
    """Arms on the models of a bench. prompts: as text.  tokens: of each text, fewer where the target ends it. Texts are made once for each
    temperature. Raises InvalidRequest where there is nothing to say.
    """

    def __init__(
        self, bench: Bench, arms: Sequence[Arm], prompts: Sequence[str], tokens: int
    ) -> None:
        if not prompts or tokens < 1:
            raise InvalidRequest(
                f"a text and a token are needed at least: got {len(prompts)} texts of {tokens} tokens"
            )
        self._bench, self._arms, self._prompts, self._tokens = bench, arms, prompts, tokens
        self._said: dict[float, Said] = {}

    def play(self, among: Sequence[Cell]) -> Iterator[PlayedTruly]:
        """Every arm in every cell. Raises InvalidRequest where the texts are so short that an arm makes all of them in one round each."""
        for cell in among:
            with self._bench.stage(cell.round_trip / 1e3) as stage:
                played = self._play(cell, stage)
            yield played

    def _play(self, cell: Cell, stage: Stage) -> PlayedTruly:
        if cell.temperature not in self._said:
            self._said[cell.temperature] = self._listen(stage, cell.temperature)
        said = self._said[cell.temperature]
        for arm in self._arms:
            read(
                arm.begin(stage),
                stage,
                said.texts[0]._replace(tokens=said.texts[0].tokens[:WARM_UP_TOKENS]),
            )
        players = {arm.name: arm.begin(stage) for arm in self._arms}
        readings: dict[str, list[Reading]] = {name: [] for name in players}
        for index, text in enumerate(said.texts):
            alone(stage, text.prompt, text.params, 1)  # now the target has the prompt's keys
            for turn in np.random.default_rng(index).permutation(len(self._arms)):
                name = self._arms[turn].name
                readings[name].append(read(players[name], stage, text))
        results = {
            name: summed(readings[name], player, said.texts[0].params.greedy)
            for name, player in players.items()
        }
        if short := [name for name, result in results.items() if not result.tokens]:
            raise InvalidRequest(
                f"{short[0]} made every text in one round: longer ones are needed (--tokens)"
            )
        return PlayedTruly(cell, said.agreement, results, readings)

    def _listen(self, stage: Stage, temperature: float) -> Said:
        """The target's own texts after the prompts."""
        texts = []
        for index, prompt in enumerate(self._prompts):
            ids = tuple(self._bench.tokenizer.encode(prompt))
            params = SamplingParams(temperature, seed=11 + index).on_the_wire()
            texts.append(
                Text(
                    ids,
                    params,
                    alone(stage, ids, params, self._tokens, self._bench.description.stop_ids),
                )
            )
        return Said(tuple(texts), agreement(stage.draft, texts))


def alone(
    stage: Stage,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """What the target says by itself, across the link; a stop id ends it."""
    verifier = stage.verifier
    verifier.open(prompt, params).result()
    said = tuple(verifier.generate(tokens, stop_ids))
    verifier.close()
    return said


def agreement(draft: Model, texts: Sequence[Text]) -> Agreement:
    """How well the draft foresees what the target said."""
    first = covered = total = 0
    for text in texts:
        sequence = ModelSequence(draft, 0, text.params)
        sequence.extend(text.prompt[:-1])
        before = TokenTree.chain([text.prompt[-1], *text.tokens[:-1]])
        places = (
            sequence.rank(before, range(len(before)), GUESSES).ids == np.array(text.tokens)[:, None]
        )
        first, covered, total = (
            first + int(places[:, 0].sum()),
            covered + int(places.any(1).sum()),
            total + len(before),
        )
    return Agreement(first / total, covered / total)


def cells(patterns: Sequence[str] = CELLS) -> list[Cell]:
    """Those of the grid whose names (RTT:pair:TEMPERATURE) match a pattern, as `80:*:0`."""
    grid = [
        Cell(trip, LEVEL, temperature) for temperature, trip in product(TEMPERATURES, ROUND_TRIPS)
    ]
    return [cell for cell in grid if any(fnmatch(str(cell), pattern) for pattern in patterns)]


def record(bench: Bench, studied: Sequence[PlayedTruly]) -> dict[str, Any]:
    """Everything, for JSON; seconds, but where a name says milliseconds."""
    times, described = bench.times, bench.description
    return {
        "models": bench.chosen._asdict(),
        "device": described.device,
        "conditions": bench.words,
        "draft_call": times.here,
        "target_forward": [
            {"rows": rows, "nodes": nodes, "seconds": seconds}
            for (rows, nodes), seconds in times.target.items()
        ],
        "draft_call_beside": times.beside,
        "cells": [
            {
                **said,
                "differing": played.differing,
                "readings": {
                    name: [one._asdict() for one in made] for name, made in played.readings.items()
                },
            }
            for said, played in zip(table.record(studied, bench.verify), studied, strict=True)
        ],
    }


def markdown(bench: Bench, studied: Sequence[PlayedTruly]) -> str:
    """The study's tables, under what they were measured with."""
    differing = {
        played.cell: f"{sum(played.differing.values())} of {played.texts}" for played in studied
    }
    times, lengths = (
        bench.times,
        [one.length for played in studied for one in next(iter(played.readings.values()))],
    )
    length = f"{min(lengths)} to {max(lengths)}" if len(set(lengths)) > 1 else f"{lengths[0]}"
    lines = [
        bench.words,
        "",
        f"- The target's forward, ms by nodes: {_milliseconds({nodes: seconds for (_, nodes), seconds in times.target.items()})}",
        f"- A call of the draft, ms by width: {_milliseconds(times.here)}; beside the target: {_milliseconds(times.beside)}",
        f"- Texts that each arm made in a cell: {len(lengths) // len(studied)}, of {length} tokens",
        "",
        table.markdown(
            studied, bench.verify, lambda played: {"texts that differ": differing[played.cell]}
        ),
    ]
    told = [
        f"- {played.cell}: "
        + ", ".join(f"{name} {count}" for name, count in played.differing.items())
        for played in studied
        if played.differing
    ]
    return "\n".join(
        [*lines, *(["Texts that are not the target's own, by arm:", "", *told, ""] if told else [])]
    )


def _milliseconds(seconds: Mapping[int, float]) -> str:
    return ", ".join(f"{size} {1e3 * each:.3g}" for size, each in seconds.items())
