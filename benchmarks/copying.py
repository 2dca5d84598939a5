"""Fit the shipped prior of copied text, and show what copies are worth beside a model.

    python -m benchmarks.copying --pair "NAME=DATA.npz" [--pair ...] [--write
    inference/data/acceptance.json]

DATA is what benchmarks/agreement.py collects. Every text is read again, and before each of its
tokens the copy source is asked what followed the same words before. Every fourth text is held out.
The table shows how often the source names anything, how often the target then took the likeliest
copied token and one of all, predicted over actual, and the log-loss in nats of what the target took
at these positions: by the model's chances alone, and by both together. --write puts laws fitted on
all texts into the record. Nothing is timed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.acceptance import HELD_OUT, WORTH, K, fit_weights, named
from benchmarks.agreement import Agreement, load
from benchmarks.harness import command
from inference.drafters.copied_text import CopySource
from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.acceptance import AcceptanceModel, features
from inference.planner.acceptance_file import read_acceptance
from inference.planner.child_features import Copying, copy_features, joint_features
from inference.planner.law import FloatArray

_LEAST = 1e-4  # a token that neither names


class Position(NamedTuple):
    """Where the source named something."""

    tokens: list[int]  # the copied ones
    table: FloatArray  # [k, F]
    model: dict[int, float]  # the model's chances
    written: int

    @property
    def taken(self) -> int | None:
        return self.tokens.index(self.written) if self.written in self.tokens else None


def positions(text: Agreement, model: AcceptanceModel) -> Iterator[Position]:
    """All positions of a text at which the source named something."""
    source, scores = CopySource(), text.scores[:, :K]
    source.open(text.prompt.tolist())
    tables = features(scores, np.zeros(len(scores), dtype=int), text.greedy)
    chances = model.edges_of(tables, scores, text.greedy)
    for ids, row, written in zip(
        text.ids[:, :K].tolist(), chances.tolist(), text.written.tolist(), strict=True
    ):
        length, following = source.following(source.end)
        if following:
            table = np.array(copy_features(length, following))
            tokens = [one.token for one in following]
            yield Position(tokens, table, dict(zip(ids, row, strict=True)), written)
        source.extend(written)


def fit_copies(seen: Sequence[Position]) -> dict[str, Any]:
    """The law of copied children, each until the target took one."""
    reached = [len(one.tokens) if one.taken is None else one.taken + 1 for one in seen]
    table = np.concatenate([one.table[:n] for one, n in zip(seen, reached, strict=True)])
    taken = np.concatenate(
        [
            np.arange(n) == (-1 if one.taken is None else one.taken)
            for one, n in zip(seen, reached, strict=True)
        ]
    )
    return fit_weights(table, taken, np.full(len(taken), WORTH / len(seen)))


def fit_joint(seen: Sequence[Position], copies: dict[str, Any]) -> dict[str, Any]:
    """The law of children that model and source name, given the law of copies."""
    judge = _copying(copies, read_acceptance().copying.to_record()["joint"])
    both = [_joint(one, judge) for one in seen]
    table = np.concatenate([table for _, table in both])
    taken = np.concatenate(
        [np.array(tokens) == one.written for (tokens, _), one in zip(both, seen, strict=True)]
    )
    return fit_weights(table, taken, np.full(len(taken), WORTH / len(seen)))


def _joint(one: Position, judge: Copying) -> tuple[list[int], FloatArray]:
    chances = judge.chances(one.table.tolist())
    return joint_features(one.model, dict(zip(one.tokens, chances, strict=True)))


def _copying(copies: dict[str, Any], joint: dict[str, Any]) -> Copying:
    return Copying.read(Json({"copies": copies, "joint": joint}, "this fit", InvalidRequest))


def cells(seen: Sequence[Position], judge: Copying) -> Iterator[str]:
    """What the laws say of positions they were not fitted on."""
    chances = [judge.chances(one.table.tolist()) for one in seen]
    first = sum(one.taken == 0 for one in seen)
    any_ = sum(one.taken is not None for one in seen)
    alone = [-math.log(max(one.model.get(one.written, 0.0), _LEAST)) for one in seen]
    together = []
    for one in seen:
        tokens, table = _joint(one, judge)
        chance = dict(zip(tokens, judge.together(table).tolist(), strict=True))
        together.append(-math.log(max(chance.get(one.written, 0.0), _LEAST)))
    yield f"{first / len(seen):.3f}"
    yield f"{any_ / len(seen):.3f}"
    yield f"{sum(row[0] for row in chances) / max(first, 1):.3f}"
    yield f"{sum(sum(row) for row in chances) / max(any_, 1):.3f}"
    yield f"{np.mean(alone):.3f}"
    yield f"{np.mean(together):.3f}"


def every(texts: Iterable[Agreement], model: AcceptanceModel) -> list[Position]:
    return [one for text in texts for one in positions(text, model)]


def main() -> None:
    parser = command(__doc__)
    parser.add_argument(
        "--pair", type=named, action="append", required=True, metavar="NAME=DATA.npz"
    )
    parser.add_argument("--write", type=Path, help="put laws fitted on all texts into this record")
    given = parser.parse_args()
    model = read_acceptance()
    pairs = [(name, load(path)) for name, path in given.pair]
    shown = every(
        (text for _, texts in pairs for i, text in enumerate(texts) if i % HELD_OUT), model
    )
    copies = fit_copies(shown)
    judge = _copying(copies, fit_joint(shown, copies))
    print("| pair | T | positions | named | first taken | any taken | first: predicted/actual |")
    print("| any: predicted/actual | loss, model | loss, both |")
    for name, texts in pairs:
        for temperature in sorted({text.temperature for text in texts}):
            held = [
                text
                for i, text in enumerate(texts)
                if not i % HELD_OUT and text.temperature == temperature
            ]
            seen, total = every(held, model), sum(len(text.written) for text in held)
            front = [name, str(temperature), str(total), f"{len(seen) / total:.3f}"]
            print("| " + " | ".join([*front, *cells(seen, judge)]) + " |")
    if given.write:
        whole = every((text for _, texts in pairs for text in texts), model)
        record = json.loads(given.write.read_text(encoding="utf-8"))
        copies = fit_copies(whole)
        record["copying"] = {"copies": copies, "joint": fit_joint(whole, copies)}
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
