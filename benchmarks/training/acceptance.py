"""Fit the shipped priors of acceptance and of copied text from pairs of models.

    python -m benchmarks.training.acceptance --pair "NAME=DATA.npz" [--pair ...] [--write
    inference/data/acceptance.json]

DATA is what benchmarks/training/agreement.py collects; the shipped record is of two collections:

    python -m benchmarks.training.agreement --out embedded.npz --texts 24 --new 256
    python -m benchmarks.training.agreement --out qwen.npz --target QWEN2.5-CODER-1.5B \\
        --draft QWEN2.5-CODER-0.5B --prompts PROMPTS.jsonl --chat --texts 26 --new 96 --batch 26

where the prompts are 8 of HumanEval, 12 of MT-bench and 6 of GSM8K. The table shows, by pair and
temperature, the log-loss in nats of what the target took (rank 0 to 7, or none of these) on every
fourth text: under the softmax of the scores (1e-3 kept for none), under what ships, and under a fit
of the other texts. --write fits all texts. Nothing is timed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import FileName, Flags, run, table_lines
from benchmarks.training import copying
from benchmarks.training.agreement import TEMPERATURES, Agreement, load
from benchmarks.training.logistic import WORTH, fit_weights
from inference.drafters.round_proposer import edge_values
from inference.errors import InvalidRequest
from inference.flags.group import Repeated, Shown
from inference.json_file import Json
from inference.planner.acceptance import KINDS, RANKS, VERSION, AcceptanceModel
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.child_features import RANK_FEATURES, FloatArray, rank_features

K = 8
"""Children of a node in the table."""

WIDTHS = (1, 2, 4, 8, 16)
"""Children that the fit sees: a law must hold for any number of them."""

HELD_OUT = 4
RATES_WORTH = 10

_NONE = 1e-3  # probability that the softmax leaves for tokens that are not among the K


class Text(NamedTuple):
    """A collected text, and at which depth of a round each of its positions was, had it been
    drafted by trees of varying width and depth.
    """

    of: Agreement
    depths: NDArray[np.int64]  # [n]


class Pair(NamedTuple):
    """Texts of one draft and one target."""

    name: str
    texts: list[Text]

    def part(self, held_out: bool) -> list[Text]:
        """Every HELD_OUT-th text of each temperature, or the others."""
        return [
            text
            for temperature in TEMPERATURES
            for index, text in enumerate(
                text for text in self.texts if text.of.temperature == temperature
            )
            if (index % HELD_OUT == 0) == held_out
        ]


def rounds_of(text: Agreement, random: np.random.Generator) -> Text:
    """Cut a text into rounds: a round goes on while the token is among the first `width` and
    `deepest` is not reached.
    """
    depths, depth, width, deepest = [], 0, 1, 1
    for taken in text.taken.tolist():
        if depth == 0:
            width, deepest = int(random.choice([1, 2, 4, 8])), int(random.choice([4, 6, 8, 16]))
        depths.append(depth)
        depth = depth + 1 if taken < width and depth < deepest else 0
    return Text(text, np.array(depths))


def come_to(text: Text, k: int) -> tuple[FloatArray, NDArray[np.bool_]]:  # [n, F], [n]
    """Every child of the first k that was come to: what its scores say, and whether it was
    taken.
    """
    table = rank_features(text.of.scores[:, :k], text.depths, text.of.greedy)
    ranks, taken = np.arange(k)[None], text.of.taken[:, None]
    return table[ranks <= taken], (ranks == taken)[ranks <= taken]


def fit_law(parts: Sequence[Sequence[Text]]) -> dict[str, Any]:
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
        verdicts = len(WIDTHS) * sum(len(text.of.taken) for text in texts)
        tables += [table for table, _ in seen]
        answers += [taken for _, taken in seen]
        weights += [np.full(len(taken), WORTH / verdicts / len(parts)) for _, taken in seen]
    return fit_weights(np.concatenate(tables), np.concatenate(answers), np.concatenate(weights))


def fit_rates(parts: Sequence[Sequence[Text]]) -> dict[str, Any]:
    """Rates at which each rank was taken when it was come to, over all temperatures, worth
    RATES_WORTH verdicts.
    """
    shares = np.mean([taken_shares(texts, RANKS) for texts in parts], axis=0)
    tries = RATES_WORTH * (1 - np.concatenate([[0.0], np.cumsum(shares)[:-1]]))
    hits = np.clip(RATES_WORTH * shares, 0.01 * tries, 0.99 * tries)
    return {"tries": tries.round(6).tolist(), "hits": hits.round(6).tolist()}


def taken_shares(texts: Iterable[Text], k: int) -> FloatArray:  # [k]
    """Share of positions at which each rank was taken."""
    taken = np.concatenate([text.of.taken for text in texts])
    return np.array([(taken == rank).mean() for rank in range(k)])


def fit_prior(parts: Sequence[Sequence[Text]]) -> dict[str, Any]:
    """The record of a model that has seen these pairs. Laws of masks are the shipped ones."""
    kinds = tuple((kind, kind == "greedy") for kind in KINDS)
    laws = {
        name: fit_law([[text for text in texts if text.of.greedy == greedy] for texts in parts])
        for name, greedy in kinds
    }
    shipped = read_acceptance().to_record()
    record = {
        "version": VERSION,
        "features": list(RANK_FEATURES),
        "laws": laws,
        "rates": fit_rates(parts),
        **{name: shipped[name] for name in ("copying", "guessing")},
    }
    texts = (text.of for part in parts for text in part)
    return record | {"copying": copying.fit(texts, model_of(record))}


def model_of(record: dict[str, Any]) -> AcceptanceModel:
    return read_model(Json(record, "this fit", InvalidRequest))


def loss(chances: FloatArray, taken: NDArray[np.int32]) -> FloatArray:  # [n, K], [n] -> [n]
    """Nats by which each outcome surprised."""
    whole = np.concatenate([chances, 1 - chances.sum(axis=1, keepdims=True)], axis=1)
    return np.asarray(-np.log(whole[np.arange(len(taken)), np.minimum(taken, K)]))


def chances_of(model: AcceptanceModel, texts: Sequence[Text]) -> FloatArray:  # [n, K]
    """Chances of the first K children at every position."""
    parts = []
    for text in texts:
        scores = text.of.scores[:, :K]
        tables = rank_features(scores, text.depths, text.of.greedy)
        parts.append(model.edges_of(tables, scores, text.of.greedy))
    return np.concatenate(parts)


def rows(pairs: Sequence[Pair]) -> Iterator[list[str]]:
    """Log-losses on held-out texts, by pair and temperature."""
    models = read_acceptance(), model_of(fit_prior([pair.part(False) for pair in pairs]))
    for pair, temperature in product(pairs, TEMPERATURES):
        texts = [text for text in pair.part(True) if text.of.temperature == temperature]
        taken = np.concatenate([text.of.taken for text in texts])
        scores = np.concatenate([edge_values(text.of.scores[:, :K]) for text in texts])
        chances = [scores * (1 - _NONE), *(chances_of(model, texts) for model in models)]
        losses = [f"{loss(each, taken).mean():.3f}" for each in chances]
        yield [pair.name, f"{temperature:g}", str(len(taken)), *losses]


def origin(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Origin of a record, for those who find it."""
    kinds = {pair.name: Counter(text.of.kind for text in pair.texts) for pair in pairs}
    positions = {pair.name: sum(len(text.depths) for text in pair.texts) for pair in pairs}
    made = {name: {"positions": positions[name], "texts": dict(kinds[name])} for name in kinds}
    return {
        "made_by": "benchmarks/training",
        "temperatures": TEMPERATURES,
        "pairs": made,
    }


class Options(Flags):
    pair: Annotated[tuple[str, ...], Repeated(), Shown("NAME=DATA.npz")]
    """collected texts, by a name for the table; may be repeated"""
    write: FileName | None = None
    """fit all texts, the held-out ones too, and write the record here"""


def main(given: Options) -> None:
    random = np.random.default_rng(0)
    pairs = [
        Pair(name, [rounds_of(text, random) for text in load(Path(path))])
        for name, _, path in (one.rpartition("=") for one in given.pair)
    ]
    heads = ("pair", "T", "positions", "softmax", "shipped", "fitted on the others")
    print("\n".join(table_lines(heads, rows(pairs))))
    if given.write:
        fitted = fit_prior([pair.texts for pair in pairs])
        record = {"origin": origin(pairs), **fitted}
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Options, main)
