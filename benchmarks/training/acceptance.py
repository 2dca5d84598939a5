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
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import FileName, Flags, run, table_lines
from benchmarks.own_texts import Prompt, load_model, own_texts, read_prompts
from benchmarks.training import copying
from benchmarks.training.agreement import Agreement, read_text
from benchmarks.training.corpus import read_texts
from benchmarks.training.logistic import WORTH, fit_weights
from inference.drafters.round_proposer import edge_values
from inference.errors import InvalidRequest
from inference.flags.group import Repeated, Shown
from inference.json_file import Json
from inference.planner.acceptance import KINDS, RANKS, VERSION, AcceptanceModel
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.child_features import RANK_FEATURES, FloatArray, rank_features
from inference.text import Tokenizer
from outrider.models.directories import EMBEDDED

K = 8
"""Children of a node in the table."""

WIDTHS = (1, 2, 4, 8, 16)
"""Children that the fit sees: a law must hold for any number of them."""

TEMPERATURES = (0.0, 0.7, 1.0)
PROMPT_TOKENS = 96  # of a prompt that is cut from a file
HELD_OUT = 4
RATES_WORTH = 10

_NONE = 1e-3  # probability that the softmax leaves for tokens that are not among the K


class Text(NamedTuple):
    """A ranked text, and at which depth of a round each of its positions was, had it been drafted
    by trees of varying width and depth.
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


def loss(chances: FloatArray, taken: NDArray[np.int64]) -> FloatArray:  # [n, K], [n] -> [n]
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
        shares = [f"{(taken < best).mean():.3f}" for best in (1, K)]
        scores = np.concatenate([edge_values(text.of.scores[:, :K]) for text in texts])
        chances = [scores * (1 - _NONE), *(chances_of(model, texts) for model in models)]
        losses = [f"{loss(each, taken).mean():.3f}" for each in chances]
        yield [pair.name, f"{temperature:g}", str(len(taken)), *shares, *losses]


def origin(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Origin of a record, for those who read it."""
    made = {
        pair.name: {
            "positions": sum(len(text.depths) for text in pair.texts),
            "texts": dict(Counter(text.of.text.kind for text in pair.texts)),
        }
        for pair in pairs
    }
    return {"made_by": "benchmarks/training", "temperatures": TEMPERATURES, "pairs": made}


def held_out_prompts(tokenizer: Tokenizer, count: int) -> list[Prompt]:
    """Return beginnings of evenly spread windows of files that the embedded pair has not seen."""
    listing = json.loads((EMBEDDED / "training_files.json").read_text(encoding="utf-8"))
    windows = [
        tuple(ids[cut : cut + PROMPT_TOKENS])
        for ids in map(tokenizer.encode, filter(None, read_texts(listing, "held-out")))
        for cut in range(0, len(ids) - PROMPT_TOKENS, 4 * PROMPT_TOKENS)
    ]
    chosen = windows[:: max(1, len(windows) // count)][:count]
    return [Prompt("python", ids) for ids in chosen]


def collect(given: Options, files: Sequence[str], random: np.random.Generator) -> Pair:
    """Let a target generate its texts, and its draft rank their tokens."""
    target, name, texts, *prompts = files
    found, draft = load_model(name, 1)
    asked = (
        read_prompts(found.tokenizer, Path(prompts[0]), given.each)
        if prompts
        else held_out_prompts(found.tokenizer, given.each)
    )
    written = (own_texts(target, asked, at, given.tokens, Path(texts)) for at in TEMPERATURES)
    ranked = (read_text(draft, text) for texts in written for text in texts)
    return Pair(f"{target}, {name}", [rounds_of(text, random) for text in ranked])


class Options(Flags):
    pair: Annotated[tuple[str, ...], Repeated(), Shown("TARGET,DRAFT,TEXTS[,PROMPTS]")]
    """two models and a file for the target's texts; may be repeated"""
    each: int = 24
    """prompts of each kind"""
    tokens: int = 256
    """of a text"""
    write: FileName | None = None
    """fit all texts, the held-out ones too, and write the record here"""


def main(given: Options) -> None:
    random = np.random.default_rng(0)
    pairs = [collect(given, pair.split(","), random) for pair in given.pair]
    heads = (
        "pair",
        "T",
        "positions",
        "first",
        "of 8",
        "softmax",
        "shipped",
        "fitted on the others",
    )
    print("\n".join(table_lines(heads, rows(pairs))))
    if given.write:
        record = {"origin": origin(pairs), **fit_prior([pair.texts for pair in pairs])}
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Options, main)
