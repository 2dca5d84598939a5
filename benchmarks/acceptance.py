"""Fit the shipped acceptance prior from pairs of models, and show what it is worth on texts it was
not fitted on.

    python -m benchmarks.acceptance --pair "NAME=DATA.npz" [--pair ...] [--write
    inference/data/acceptance.json]

DATA is what benchmarks/agreement.py collects; the shipped record is from two such collections:

    python -m benchmarks.agreement --out embedded.npz --texts 24 --new 256 python -m
    benchmarks.agreement --out qwen.npz --target QWEN2.5-CODER-1.5B --draft QWEN2.5-CODER-0.5B
    --prompts PROMPTS.jsonl \\
        --chat --texts 26 --new 96 --batch 26

where the prompts are 8 of HumanEval, 12 of MT-bench and 6 of GSM8K.

Every fourth text is held out. The table shows, by pair and temperature, the log-loss in nats of
what the target took (rank 0 to 7, or none of these) under: the softmax of the scores (1e-3 kept for
none), the average rates of the ranks on the other texts, the prior of all pairs, that prior while
it learns from text to text, and the prior of the other pairs alone while it learns: a pair that was
never seen. Beside them, predicted over actual share of positions where the target's token is the
draft's first, and one of its first 8, for the learning prior. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement import TEMPERATURES, Agreement, load
from benchmarks.harness import command
from inference.drafters.tree_policies import edge_values
from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.planner.acceptance import FEATURES, KINDS, RANKS, VERSION, features
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.law import FloatArray, hazards

K = 8
"""Children of a node in the table."""

WIDTHS = (1, 2, 4, 8, 16)
"""Children that the fit sees: a law must hold for any number of them."""

HELD_OUT = 4
WORTH = 30
"""Verdicts that the fitted prior stands for: what a session of another pair must outweigh."""

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
    table = features(text.of.scores[:, :k], text.depths, text.of.greedy)
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


def fit_weights(
    table: FloatArray, taken: NDArray[np.bool_], weight: FloatArray
) -> dict[str, Any]:  # [n, F], [n], [n]
    """The likeliest logistic law of these children, as a record. weight: of each; WORTH in sum."""
    least = 0.1 * np.eye(table.shape[1])  # what no data speak of stays near 0
    law = np.zeros(table.shape[1])
    for _ in range(30):
        chance = hazards(table, law)
        precision = least + (table * (weight * chance * (1 - chance))[:, None]).T @ table
        law -= np.linalg.solve(precision, least @ law + (weight * (chance - taken)) @ table)
    return {
        "weights": law.round(6).tolist(),
        "precision": ((precision + precision.T) / 2).round(6).tolist(),
        "worth": WORTH,
    }


def fit_rates(parts: Sequence[Sequence[Text]]) -> dict[str, Any]:
    """How often each rank was taken when it was come to, over all temperatures, worth
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
    """The record of a model that has seen these pairs."""
    kinds = tuple((kind, kind == "greedy") for kind in KINDS)
    laws = {
        name: fit_law([[text for text in texts if text.of.greedy == greedy] for texts in parts])
        for name, greedy in kinds
    }
    return {
        "version": VERSION,
        "features": list(FEATURES),
        "laws": laws,
        "rates": fit_rates(parts),
        **shipped_sources(),
    }


def loss(chances: FloatArray, taken: NDArray[np.int32]) -> FloatArray:  # [n, K], [n] -> [n]
    """Nats by which each outcome surprised."""
    whole = np.concatenate([chances, 1 - chances.sum(axis=1, keepdims=True)], axis=1)
    return np.asarray(-np.log(whole[np.arange(len(taken)), np.minimum(taken, K)]))


def shipped_sources() -> dict[str, Any]:
    """The laws of copied text and of masks as they are; benchmarks/copying.py and
    benchmarks/guesses.py fit them.
    """
    shipped = read_acceptance().to_record()
    return {name: shipped[name] for name in ("copying", "guessing")}


def predict(record: dict[str, Any], texts: Iterable[Text], learning: bool) -> Iterator[FloatArray]:
    """Chances of the first K children at every position of each text; a learning model sees the
    texts one after the other.
    """
    model = read_model(Json(record, "this fit", InvalidRequest))
    for text in texts:
        chances = np.empty((len(text.depths), K))
        for index, (row, depth, taken) in enumerate(
            zip(text.of.scores[:, :K], text.depths, text.of.taken.tolist(), strict=True)
        ):
            tables = features(row[None], [depth], text.of.greedy)
            chances[index] = model.edges_of(tables, row[None], text.of.greedy)[0]
            if learning:
                model.observe_path(tables, text.of.greedy, [taken if taken < K else None])
        yield chances


def table(pairs: Sequence[Pair]) -> Iterator[str]:
    """The comparison, a line for each pair and temperature."""
    yield (
        "| pair | T | positions | softmax | rates | prior | learning | learning, pair unseen | "
        "first: predicted/actual | first 8 |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    prior = fit_prior([pair.part(held_out=False) for pair in pairs])
    for pair in pairs:
        others = [other.part(held_out=False) for other in pairs if other is not pair]
        unseen = fit_prior(others) if others else None
        for temperature in TEMPERATURES:
            yield (
                f"| {pair.name} | {temperature} | "
                + " | ".join(_cells(pair, temperature, prior, unseen))
                + " |"
            )


def _cells(
    pair: Pair, temperature: float, prior: dict[str, Any], unseen: dict[str, Any] | None
) -> Iterator[str]:
    texts = [text for text in pair.part(held_out=True) if text.of.temperature == temperature]
    taken = np.concatenate([text.of.taken for text in texts])
    softmax = np.concatenate([edge_values(text.of.scores[:, :K]) for text in texts]) * (1 - _NONE)
    rates = taken_shares(
        (text for text in pair.part(held_out=False) if text.of.temperature == temperature), K
    )
    learnt = np.concatenate(list(predict(prior, texts, learning=True)))
    yield str(len(taken))
    yield f"{loss(softmax, taken).mean():.3f}"
    yield f"{loss(np.tile(rates, (len(taken), 1)), taken).mean():.3f}"
    yield f"{loss(np.concatenate(list(predict(prior, texts, learning=False))), taken).mean():.3f}"
    yield f"{loss(learnt, taken).mean():.3f}"
    if unseen is None:
        yield ""
    else:
        others = np.concatenate(list(predict(unseen, texts, learning=True)))
        yield f"{loss(others, taken).mean():.3f}"
    yield f"{learnt[:, 0].sum() / (taken < 1).sum():.3f}"
    yield f"{learnt.sum() / (taken < K).sum():.3f}"


def origin(pairs: Sequence[Pair]) -> dict[str, Any]:
    """What a record was fitted from, for those who find it."""
    kinds = {pair.name: Counter(text.of.kind for text in pair.texts) for pair in pairs}
    positions = {pair.name: sum(len(text.depths) for text in pair.texts) for pair in pairs}
    made = {name: {"positions": positions[name], "texts": dict(kinds[name])} for name in kinds}
    return {
        "made_by": "benchmarks/agreement.py and benchmarks/acceptance.py",
        "temperatures": TEMPERATURES,
        "pairs": made,
    }


def named(text: str) -> tuple[str, Path]:
    """NAME=FILE."""
    name, _, path = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"NAME=FILE is needed: got {text}")
    return name, Path(path)


def main() -> None:
    parser = command(__doc__)
    parser.add_argument(
        "--pair", type=named, action="append", required=True, metavar="NAME=DATA.npz"
    )
    parser.add_argument(
        "--write", type=Path, help="fit all texts, the held-out ones too, and write the record here"
    )
    given = parser.parse_args()
    random = np.random.default_rng(0)
    pairs = [
        Pair(name, [rounds_of(text, random) for text in load(path)]) for name, path in given.pair
    ]
    print("\n".join(table(pairs)))
    if given.write:
        fitted = fit_prior([pair.texts for pair in pairs])
        record = {"origin": origin(pairs), **fitted}
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
