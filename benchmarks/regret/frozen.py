"""Figures of the core before this one, text by text: `frozen/COMMIT.json`.

They were made at the commit in a file's name by the study as it was there (`git show
COMMIT:benchmarks/regret/freeze.py`), with the same texts, noise and profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.regret.settings import Setting
from benchmarks.regret.study import Cell
from inference.errors import InvalidRequest
from inference.json_file import Json, read_json

DIRECTORY = Path(__file__).parent / "frozen"

ADAPTIVE, ALONE = "adaptive", "target-only"
"""Names of arms there: what Outrider decided by itself, with the draft here."""


class FrozenTexts(NamedTuple):
    """A series in a setting. miss: share of tokens that were none of the draft's guesses; tells
    whether the texts are the same.  milliseconds: of a token, by arm and text.
    """

    miss: float
    milliseconds: dict[str, tuple[float, ...]]

    def mean(self, arm: str) -> float:
        texts = self.milliseconds[arm]
        return sum(texts) / len(texts)


Frozen = dict[tuple[Setting, str], FrozenTexts]
"""By setting and name of a series."""


def read_frozen(paths: Sequence[Path] | None = None) -> Frozen:
    """All that was frozen. Raises InvalidRequest for a file that is none of ours."""
    found = Frozen()
    for path in sorted(DIRECTORY.glob("*.json")) if paths is None else paths:
        raw = read_json(path, InvalidRequest)
        columns = raw.field("columns").each(Json.line)
        for cell in raw.field("cells").items():
            setting = Setting(
                Cell(
                    cell.field("round_trip").integer(),
                    cell.field("level").line(),
                    cell.field("temperature").number(),
                ),
                cell.field("draft").number(),
                cell.field("fast_target").flag(),
            )
            misses = cell.field("miss").fields()
            for series, arms in cell.field("texts").fields().items():
                found[setting, series] = FrozenTexts(
                    misses[series].number(), _milliseconds(arms, columns.index("ms"))
                )
    return found


def _milliseconds(arms: Json, column: int) -> dict[str, tuple[float, ...]]:
    return {
        arm: tuple(row.each(Json.number)[column] for row in texts.items())
        for arm, texts in arms.fields().items()
    }
