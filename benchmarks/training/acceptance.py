"""Fit the shipped priors of acceptance and of copied text on pairs of models.

    python -m benchmarks.training.acceptance --pair TARGET,DRAFT,TEXTS.json[,PROMPTS.jsonl]
        [--pair ...] [--each 24] [--tokens 256] [--write inference/data/acceptance.json]

The target generates a text for every prompt and temperature, which TEXTS keeps; then the draft
ranks every token of it. PROMPTS is a file as `outrider bench` reads it; without one the prompts are
cut from files that the embedded pair was not trained on. The shipped record is of the embedded pair
and of Qwen2.5-Coder 1.5B and 0.5B on 8 tasks of HumanEval, 12 of MT-bench and 6 of GSM8K.

The table shows, by pair and temperature, how often the target's token is the draft's first guess or
one of eight, and the log-loss in nats of its rank on every fourth text: under the softmax of the
scores, under what ships, and under a fit of the other texts. --write fits all texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import FileName, Flags, run, table_lines
from benchmarks.training import copying
from benchmarks.training.agreement import TEMPERATURES, Agreement, collect
from benchmarks.training.logistic import WORTH, fit_weights
from inference.drafters.round_proposer import edge_values
from inference.errors import InvalidRequest
from inference.files.json_file import Json
from inference.flags.group import Metavar, Multiple
from inference.planner.acceptance import (
    KINDS,
    RANKS,
    VERSION,
    AcceptanceModel,
    read_acceptance,
    read_model,
)
from inference.planner.child_features import RANK_FEATURES, FloatArray, rank_features

Texts = Sequence[Agreement]
"""Texts of one pair."""

K = 8
"""Children of a node in the table."""

WIDTHS = (1, 2, 4, 8, 16)
"""Children that the fit sees: a law must hold for any number of them."""

HELD_OUT = 4
RATES_WORTH = 10

_NONE = 1e-3  # probability that the softmax leaves for tokens that are not among the K


def come_to(text: Agreement, k: int) -> tuple[FloatArray, NDArray[np.bool_]]:  # [n, F], [n]
    """Every child of the first k that was come to: what its scores say, and whether it was
    taken.
    """
    table = rank_features(text.scores[:, :k], text.depths, text.greedy)
    ranks, taken = np.arange(k)[None], text.taken[:, None]
    return table[ranks <= taken], (ranks == taken)[ranks <= taken]


def fit_law(parts: Sequence[Texts]) -> dict[str, Any]:
    """The likeliest weights when every pair counts the same, and their precision after WORTH
    verdicts.
    """
    tables, answers, weights = [], [], []
    for texts in parts:
        seen = [
            come_to(text, WIDTHS[index % len(WIDTHS)])
            for offset in range(len(WIDTHS))
            for index, text in enumerate(texts, offset)
        ]
        verdicts = len(WIDTHS) * sum(len(text.taken) for text in texts)
        tables += [table for table, _ in seen]
        answers += [taken for _, taken in seen]
        weights += [np.full(len(taken), WORTH / verdicts / len(parts)) for _, taken in seen]
    return fit_weights(np.concatenate(tables), np.concatenate(answers), np.concatenate(weights))


def fit_rates(parts: Sequence[Texts]) -> dict[str, Any]:
    """Rates at which each rank was taken when it was come to, over all temperatures, worth
    RATES_WORTH verdicts.
    """
    ranks = np.arange(RANKS)
    shares = np.mean(
        [
            (np.concatenate([text.taken for text in texts])[:, None] == ranks).mean(axis=0)
            for texts in parts
        ],
        axis=0,
    )
    tries = RATES_WORTH * (1 - np.concatenate([[0.0], np.cumsum(shares)[:-1]]))
    hits = np.clip(RATES_WORTH * shares, 0.01 * tries, 0.99 * tries)
    return {"tries": tries.round(6).tolist(), "hits": hits.round(6).tolist()}


def fit_prior(parts: Sequence[Texts]) -> dict[str, Any]:
    """The record of a model that has seen these pairs."""
    laws = {
        kind: fit_law(
            [[text for text in texts if text.greedy == (kind == "greedy")] for texts in parts]
        )
        for kind in KINDS
    }
    shipped = read_acceptance().to_record()
    record = {
        "version": VERSION,
        "features": list(RANK_FEATURES),
        "laws": laws,
        "rates": fit_rates(parts),
        "copying": shipped["copying"],
    }
    texts = (text for part in parts for text in part)
    return record | {"copying": copying.fit(texts, model_of(record))}


def model_of(record: dict[str, Any]) -> AcceptanceModel:
    return read_model(Json(record, "this fit", InvalidRequest))


def loss(chances: FloatArray, taken: NDArray[np.int64]) -> FloatArray:  # [n, K], [n] -> [n]
    """Nats by which each outcome surprised."""
    whole = np.concatenate([chances, 1 - chances.sum(axis=1, keepdims=True)], axis=1)
    return np.asarray(-np.log(whole[np.arange(len(taken)), np.minimum(taken, K)]))


def chances_of(model: AcceptanceModel, texts: Texts) -> FloatArray:  # [n, K]
    """Chances of the first K children at every position."""
    parts = []
    for text in texts:
        scores = text.scores[:, :K]
        tables = rank_features(scores, text.depths, text.greedy)
        parts.append(model.edges_of(tables, scores, text.greedy))
    return np.concatenate(parts)


def rows(pairs: dict[str, Texts]) -> Iterator[list[str]]:
    """Log-losses on held-out texts, by pair and temperature."""
    others = [
        [text for text in texts if text.text.params.seed % HELD_OUT] for texts in pairs.values()
    ]
    models = read_acceptance(), model_of(fit_prior(others))
    for (name, texts), temperature in product(pairs.items(), TEMPERATURES):
        mine = [
            text
            for text in texts
            if text.temperature == temperature and not text.text.params.seed % HELD_OUT
        ]
        taken = np.concatenate([text.taken for text in mine])
        shares = [f"{(taken < best).mean():.3f}" for best in (1, K)]
        scores = np.concatenate([edge_values(text.scores[:, :K]) for text in mine])
        chances = [scores * (1 - _NONE), *(chances_of(model, mine) for model in models)]
        losses = [f"{loss(each, taken).mean():.3f}" for each in chances]
        yield [name, f"{temperature:g}", str(len(taken)), *shares, *losses]


def origin(pairs: dict[str, Texts]) -> dict[str, Any]:
    """Origin of a record, for those who read it."""
    made = {
        name: {
            "positions": sum(len(text.taken) for text in texts),
            "texts": dict(Counter(text.text.kind for text in texts)),
        }
        for name, texts in pairs.items()
    }
    return {"made_by": "benchmarks/training", "temperatures": TEMPERATURES, "pairs": made}


class Options(Flags):
    pair: Annotated[tuple[str, ...], Multiple(), Metavar("TARGET,DRAFT,TEXTS[,PROMPTS]")]
    """two models and a file for the target's texts; may be repeated"""
    each: int = 24
    """prompts of each kind"""
    tokens: int = 256
    """of a text"""
    write: FileName | None = None
    """fit all texts, the held-out ones too, and write the record here"""


HEADS = ("pair", "T", "positions", "first", "of 8", "softmax", "shipped", "fitted on the others")


def main(given: Options) -> None:
    pairs = dict[str, Texts]()
    for pair in given.pair:
        target, draft, texts, *more = pair.split(",")
        prompts = Path(more[0]) if more else None
        collected = collect(target, draft, Path(texts), prompts, given.each, given.tokens)
        pairs[f"{target}, {draft}"] = list(collected)
    print(*table_lines(HEADS, rows(pairs)), sep="\n")
    if given.write:
        record = {"origin": origin(pairs), **fit_prior(list(pairs.values()))}
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Options, main)
