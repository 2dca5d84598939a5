"""Arms in turn on the same prompts, an arm's text after another's, and what came of each on file.

The file has a line for the settings and one for each prompt that all arms have answered. A run with
the same file goes on behind them.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.rivals.arm import Arm, Made, make
from inference.errors import InvalidRequest
from outrider.measure.testbed import commit

WARM_UP_TOKENS = 12
"""Tokens of the first prompt's text, made by every arm before anything is counted."""

_PIECE_BYTES = 1 << 24


class Question(NamedTuple):
    """A prompt by its kind and name, as ids."""

    kind: str
    name: str
    ids: tuple[int, ...]


class Answers(NamedTuple):
    """Texts of a prompt, by arm. order: in which they took turns.  loads: what ran on this
    machine, or waited, before the first and after the last.
    """

    kind: str
    name: str
    prompt_tokens: int
    order: list[str]
    loads: tuple[float, float]
    commit: str
    made: dict[str, Made]


class Archive:
    """The file of a comparison. Raises InvalidRequest where it was begun with other settings."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path, self.answers = path, list[Answers]()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(settings)
            return
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        before = json.loads(first)
        changed = sorted(key for key in settings if before.get(key) != settings[key])
        if changed:
            key = changed[0]
            raise InvalidRequest(
                f"{path} was begun with {key} {before.get(key)}, this run has {settings[key]}: "
                "name another directory"
            )
        self.answers = [_answers(json.loads(line)) for line in lines]

    def has(self, question: Question) -> bool:
        """Whether all arms have answered it."""
        return any((one.kind, one.name) == (question.kind, question.name) for one in self.answers)

    def add(self, answers: Answers) -> None:
        made = {name: one._asdict() for name, one in answers.made.items()}
        self._write({**answers._asdict(), "made": made})
        self.answers.append(answers)

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _answers(line: dict[str, Any]) -> Answers:
    made = {name: Made(**one) for name, one in line["made"].items()}
    return Answers(**{**line, "made": made, "loads": tuple(line["loads"])})


def read_through(files: Sequence[Path]) -> None:
    """Read files, so that their pages are in memory."""
    for file in files:
        with file.open("rb", buffering=0) as read:
            while read.read(_PIECE_BYTES):
                pass


def play(
    arms: Sequence[Arm],
    questions: Sequence[Question],
    tokens: int,
    archive: Archive,
    weights: Sequence[Path] = (),
) -> Iterator[Answers]:
    """Let all arms answer the questions that the archive lacks. The order of the arms depends on
    the question alone.

    weights: files that are read before every text, in case that the system dropped their pages
    while their arm was idle
    """
    left = [question for question in questions if not archive.has(question)]
    if not left:
        return
    for arm in arms:
        make(arm, questions[0].ids, min(WARM_UP_TOKENS, tokens))
    said = commit()
    for question in left:
        load = os.getloadavg()[0]
        seed = zlib.crc32(f"{question.kind} {question.name}".encode())
        turns = [arms[turn] for turn in np.random.default_rng(seed).permutation(len(arms))]
        made = dict[str, Made]()
        for arm in turns:
            read_through(weights)
            made[arm.name] = make(arm, question.ids, tokens)
        answers = Answers(
            question.kind,
            question.name,
            len(question.ids),
            list(made),
            (load, os.getloadavg()[0]),
            said,
            made,
        )
        archive.add(answers)
        yield answers
