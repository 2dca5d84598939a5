"""The study on real models, in real time: what a token takes across an emulated link, with several
arms on the same texts.

    python -m benchmarks.regret.models TARGET DRAFT [--dtype bfloat16] [--round_trips 20,180]
    [--prompts DIR --each 4] [--arms target-only,growing] [--busy 1]
    [--draft substitute] [--draft_quantization int8]

The arms take turns on every text, in an order that changes; what one has learnt in a text serves
its next, within a cell. The target has the prompt's keys before every turn, and a text counts from
its first round's tokens on, as on the virtual clock. Each is compared with what the target says
alone. In bfloat16 a near-tie may fall otherwise in a pass of another shape: such texts are counted,
and their times kept. With --prompts texts are of several kinds (benchmarks/prompts.py), each
prompt the first turn of a chat; without, they go on after pieces of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from benchmarks.harness import command, write_json
from benchmarks.prompts import read_prompts
from benchmarks.regret.arms import ALONE, ARMS, Arm
from benchmarks.regret.dial import GUESSES, Agreement, Text
from benchmarks.regret.models_report import PlayedTruly, markdown, record, write
from benchmarks.regret.stage import Stage
from benchmarks.regret.study import Cell, Reading, Result, read
from benchmarks.regret.texts import PROMPTS
from benchmarks.regret.two_cores import Bench, Chosen, bench, busy
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.command import run_command
from inference.decode import decode
from inference.errors import InvalidRequest
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.options import PRECISIONS
from outrider.options.groups import Quantization

LEVEL = "pair"
"""The agreement of every cell: that of the two models."""

TOKENS = 32
"""Of each text."""

WARM_UP_TOKENS = 8
"""Of the first text, made by every arm before it begins: a machine's first calls of a kind take
longer.
"""

_NAMES = (
    *("target-only", "growing", "anywhere", "fused"),
    *("chain 2", "chain 4", "chain 8", "tree 8x3", "tree 16x4", "tree 32x5"),
    *("one bet (SpecEdge)", "AutoDraft, round trip known", "UCB-SpecStop"),
)
COMPARED = tuple(arm for arm in ARMS if arm.name in _NAMES)
"""The arms that are played unless others are asked for: in real time every one costs minutes."""


class Asked(NamedTuple):
    """A prompt and what kind of text it asks for."""

    kind: str
    ids: tuple[int, ...]


class Said(NamedTuple):
    """What the target says by itself, and how well the draft foresees it."""

    texts: tuple[Text, ...]
    agreement: Agreement


class KeptTexts:
    """What a target said by itself, in a JSON file, so that a second run need not ask again. The
    file is of one target and one list of prompts; without a path nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        there = path is not None and path.is_file()
        self._texts: dict[str, list[int]] = json.loads(path.read_text()) if path and there else {}

    def get(self, key: str) -> tuple[int, ...] | None:
        """The text's tokens, None where it was never made."""
        return tuple(self._texts[key]) if key in self._texts else None

    def add(self, key: str, tokens: Sequence[int]) -> None:
        """Keep a text at once: a run may be stopped."""
        self._texts[key] = [int(token) for token in tokens]
        if self._path:
            write_json(self._path, self._texts)


def text_key(temperature: float, tokens: int, index: int, prompt: Sequence[int]) -> str:
    """The name of a kept text: all that it depends on, but the target."""
    digest = sha256(str(tuple(prompt)).encode()).hexdigest()[:16]
    return f"T={temperature} tokens={tokens} text={index} prompt={digest}"


class ModelStudy:
    """Arms on the models of a bench. tokens: of each text, fewer where the target ends it. Texts
    are made once for each temperature, and kept in a file where one is given. Raises
    InvalidRequest where there is nothing to say.
    """

    def __init__(
        self,
        bench: Bench,
        arms: Sequence[Arm],
        asked: Sequence[Asked],
        tokens: int,
        kept: KeptTexts,
    ) -> None:
        if not asked or tokens < 1:
            raise InvalidRequest(
                f"a text and a token are needed at least: got {len(asked)} texts of {tokens} tokens"
            )
        self._bench, self._arms, self._asked, self._tokens = bench, arms, asked, tokens
        self._kept = kept
        self._said: dict[float, Said] = {}

    def play(self, among: Sequence[Cell]) -> Iterator[PlayedTruly]:
        """Every arm in every cell. Raises InvalidRequest where the texts are so short that an
        arm makes all of them in one round each.
        """
        for cell in among:
            with self._bench.stage(cell.round_trip / 1e3) as stage:
                played = self._play(cell, stage)
            yield played

    def _play(self, cell: Cell, stage: Stage) -> PlayedTruly:
        if cell.temperature not in self._said:
            self._said[cell.temperature] = self._listen(stage, cell.temperature)
        said, load = self._said[cell.temperature], os.getloadavg()[0]
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
        results = {name: Result(tuple(made)) for name, made in readings.items()}
        if short := [name for name, result in results.items() if not result.total("tokens")]:
            raise InvalidRequest(
                f"{short[0]} made every text in one round: longer ones are needed (--tokens)"
            )
        kinds = tuple(asked.kind for asked in self._asked)
        return PlayedTruly(cell, said.agreement, results, kinds, (load, os.getloadavg()[0]))

    def _listen(self, stage: Stage, temperature: float) -> Said:
        """The target's own texts after the prompts."""
        texts, stop_ids = [], self._bench.description.stop_ids
        for index, (_, ids) in enumerate(self._asked):
            params = SamplingParams(temperature, seed=11 + index).on_the_wire()
            key = text_key(temperature, self._tokens, index, ids)
            made = self._kept.get(key)
            if made is None:
                made = alone(stage, ids, params, self._tokens, stop_ids)
                self._kept.add(key, made)
            texts.append(Text(ids, params, made))
        return Said(tuple(texts), agreement(stage.draft, texts))


def alone(
    stage: Stage,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """What the target says by itself, across the link; a stop id ends it."""
    order, session = Decode(len(prompt) + tokens, stop_ids), stage.session
    with closing(session):
        steps = decode(prompt, params, session, order)
        return tuple(token for step in steps for token in step.tokens)


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


def ask(tokenizer: Tokenizer, prompts: Path | None, each: int) -> list[Asked]:
    """So many prompts of each kind, from this directory's collections; or pieces of Python."""
    if prompts is None:
        return [Asked("python", tuple(tokenizer.encode(text))) for text in PROMPTS[:each]]
    return [
        Asked(prompt.kind, tuple(tokenizer.encode(prompt.text, chat=True)))
        for prompt in read_prompts(prompts, each)
    ]


def chosen_arms(names: str) -> list[Arm]:
    """By names with commas between them; target-only is among them. Raises InvalidRequest for an
    unknown one.
    """
    known = {arm.name: arm for arm in ARMS}
    wanted = [ALONE.name, *(name for name in names.split(",") if name != ALONE.name)]
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"--arms: no arm {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = command(__doc__)
    parser.add_argument("models", nargs=2, metavar="MODEL", help="the target and the draft")
    parser.add_argument("--dtype", choices=PRECISIONS, default=Chosen._field_defaults["dtype"])
    parser.add_argument("--draft", default="model", metavar="KIND", help="default: %(default)s")
    parser.add_argument("--draft_quantization", choices=get_args(Quantization))
    parser.add_argument(
        "--round_trips", default="0,20,80,300", metavar="MS,...", help="default: %(default)s"
    )
    parser.add_argument("--temperatures", default="0", metavar="T,...", help="default: 0")
    parser.add_argument("--arms", metavar="NAME,...", help="default: one of each group")
    parser.add_argument("--prompts", type=Path, metavar="DIR", help="see benchmarks/prompts.py")
    parser.add_argument("--each", type=int, default=3, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that compute beside, all along"
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="the target's own texts: made if not there"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="models.json and models.md")
    return parser


def main() -> int:
    given = _parser().parse_args()
    arms = chosen_arms(given.arms) if given.arms else COMPARED
    trips, temperatures = given.round_trips.split(","), given.temperatures.split(",")
    among = [
        Cell(int(trip), LEVEL, float(temperature))
        for temperature, trip in product(temperatures, trips)
    ]
    target, draft = given.models
    chosen = Chosen(target, draft, given.dtype, given.draft, given.draft_quantization)
    with bench(chosen) as ready, busy(given.busy) as beside:
        asked = ask(ready.tokenizer, given.prompts, given.each)
        studied = list[PlayedTruly]()
        study = ModelStudy(ready, arms, asked, given.tokens, KeptTexts(given.texts))
        for played in study.play(among):
            studied.append(played)
            shown = f"{markdown(ready, studied)}\n{beside}\n"
            print(shown, file=sys.stderr, flush=True)
            if given.out:
                write(given.out, record(ready, studied), shown)
        print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
