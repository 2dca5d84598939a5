"""Fit the laws of copied text: each text is read again, and before each of its tokens the copy
source is asked what followed the same words before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.agreement import Agreement
from benchmarks.training.logistic import WORTH, fit_weights
from inference.drafters.copied_text import SuffixAutomaton
from inference.errors import InvalidRequest
from inference.files.json_file import Json
from inference.planner.acceptance import AcceptanceModel, read_acceptance, read_model
from inference.planner.child_features import (
    FloatArray,
    copy_features,
    joint_features,
    rank_features,
)

_K = 8  # children of a node


class Position(NamedTuple):
    """A place in a text where a token was copied.

    tokens: the copied ones
    table: features of these
    model: the model's chances by token
    next_token: of the text
    """

    tokens: list[int]  # [k]
    table: FloatArray  # [k, F]
    model: dict[int, float]
    next_token: int


def positions(text: Agreement, model: AcceptanceModel) -> Iterator[Position]:
    """All positions of a text at which a token was copied."""
    written, scores = SuffixAutomaton(text.text.prompt), text.scores[:, :_K]
    tables = rank_features(scores, np.zeros(len(scores), dtype=int), text.greedy)
    chances = model.edges_of(tables, scores, text.greedy)
    for ids, row, token in zip(text.ids[:, :_K], chances, text.text.tokens, strict=True):
        following = written.following(written.end)
        if following:
            table = np.array(copy_features(written.end.length, following))
            tokens = [one.token for one in following]
            known = dict(zip(ids.tolist(), row.tolist(), strict=True))
            yield Position(tokens, table, known, token)
        written.extend(token)


def fit(texts: Iterable[Agreement], model: AcceptanceModel) -> dict[str, Any]:
    """The laws of copied children, each until the target took one, and of children that model and
    source propose, given the first law; as a record.
    """
    seen = [place for text in texts for place in positions(text, model)]
    tried = [
        (place.table[: 1 + at], np.arange(1 + at) == at)
        if (at := _rank(place)) is not None
        else (place.table, np.zeros(len(place.tokens), dtype=np.bool_))
        for place in seen
    ]
    copies = _law(tried, len(seen))
    shipped = read_acceptance().to_record()
    laws = {"copies": copies, "joint": shipped["copying"]["joint"]}
    judge = read_model(Json(shipped | {"copying": laws}, "this fit", InvalidRequest))
    return laws | {"joint": _law([_joint(place, judge) for place in seen], len(seen))}


def _rank(place: Position) -> int | None:
    return place.tokens.index(place.next_token) if place.next_token in place.tokens else None


def _joint(place: Position, judge: AcceptanceModel) -> tuple[FloatArray, NDArray[np.bool_]]:
    copied = dict(zip(place.tokens, judge.laws.copies.chances(place.table.tolist()), strict=True))
    tokens, table = joint_features(place.model, copied)
    return table, np.array(tokens) == place.next_token


def _law(tried: Sequence[tuple[FloatArray, NDArray[np.bool_]]], count: int) -> dict[str, Any]:
    """The law of children [n, F] of so many places, and whether the target took each [n]."""
    table, taken = (np.concatenate(part) for part in zip(*tried, strict=True))
    return fit_weights(table, taken, np.full(len(taken), WORTH / count))
