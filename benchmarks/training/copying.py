"""Fit the laws of copied text: each text is read again, and before each of its tokens the copy
source is asked what followed the same words before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.training.agreement import Agreement
from benchmarks.training.logistic import WORTH, fit_weights
from inference.drafters.copied_text import CopySource
from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.acceptance import AcceptanceModel
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.child_features import (
    FloatArray,
    copy_features,
    joint_features,
    rank_features,
)

_K = 8  # children of a node


class Position(NamedTuple):
    """Place in a text where the source named something."""

    tokens: list[int]  # the copied ones
    table: FloatArray  # [k, F]
    model: dict[int, float]  # the model's chances
    written: int

    @property
    def taken(self) -> int | None:
        return self.tokens.index(self.written) if self.written in self.tokens else None


def positions(text: Agreement, model: AcceptanceModel) -> Iterator[Position]:
    """All positions of a text at which the source named something."""
    source, scores = CopySource(), text.scores[:, :_K]
    source.open(list(text.text.prompt))
    tables = rank_features(scores, np.zeros(len(scores), dtype=int), text.greedy)
    chances = model.edges_of(tables, scores, text.greedy)
    for ids, row, written in zip(
        text.ids[:, :_K].tolist(), chances.tolist(), text.text.tokens, strict=True
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
    judge = _copying(copies, read_acceptance().to_record()["copying"]["joint"])
    both = [_joint(one, judge) for one in seen]
    table = np.concatenate([table for _, table in both])
    taken = np.concatenate(
        [np.array(tokens) == one.written for (tokens, _), one in zip(both, seen, strict=True)]
    )
    return fit_weights(table, taken, np.full(len(taken), WORTH / len(seen)))


def _joint(one: Position, judge: AcceptanceModel) -> tuple[list[int], FloatArray]:
    chances = judge.copied(one.table.tolist())
    return joint_features(one.model, dict(zip(one.tokens, chances, strict=True)))


def _copying(copies: dict[str, Any], joint: dict[str, Any]) -> AcceptanceModel:
    record = read_acceptance().to_record() | {"copying": {"copies": copies, "joint": joint}}
    return read_model(Json(record, "this fit", InvalidRequest))


def fit(texts: Iterable[Agreement], model: AcceptanceModel) -> dict[str, Any]:
    """The laws of copied children, and of those that model and source name, as a record."""
    seen = [one for text in texts for one in positions(text, model)]
    copies = fit_copies(seen)
    return {"copies": copies, "joint": fit_joint(seen, copies)}
