"""Show what a block draft's masks are worth, and fit the shipped prior of their chances.

    python -m benchmarks.training.guesses [--draft inference/data/block_draft] [--texts 12]
    [--new 96] [--write inference/data/acceptance.json]

The target writes a text for every prompt and temperature under the shared noise, on files that
neither model was trained on. The draft then reads them, and at every token a node with its masks is
ranked. The table shows, by temperature and offset, how often the target's token is the mask's
first, and one of its first 2, 4 and 8; offset 0 is the node itself. --write puts laws fitted on
these texts into the record.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import FileName, Flags, Folder, cpu_decoder, run, table_lines
from benchmarks.training.agreement import (
    TEMPERATURES,
    Prompt,
    held_out_prompts,
    written,
)
from benchmarks.training.logistic import WORTH, fit_weights
from inference.backends import Masks
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.errors import InvalidRequest
from inference.json_file import Json
from inference.model.config import read_config
from inference.planner.acceptance import LIKELY, OFFSETS, hazards
from inference.planner.acceptance_file import read_acceptance, read_model
from inference.planner.child_features import FloatArray, mask_features, rank_features, said_by
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.draft_methods.block import read_masks
from outrider.models.directories import EMBEDDED

K = 8
"""Children of a node."""

RATES_WORTH = 10.0
"""Verdicts that a fitted rate stands for."""

_KINDS = ("sampled", "greedy")
_SLOTS = 2048


class Reading(NamedTuple):
    """Rankings of the draft at a text: of each token's node (offset 0) and of its masks."""

    temperature: float
    written: list[int]
    ids: NDArray[np.int32]  # [n, offsets, K]
    scores: NDArray[np.float32]  # [n, offsets, K]

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Position(NamedTuple):
    """A node that a mask named children for, and what the target took."""

    offset: int
    table: list[list[float]]  # [K, F]
    taken: int | None


def read(
    model: EagerModel, masks: Masks, prompt: Prompt, written: list[int], params: SamplingParams
) -> Reading:
    """Rank every token of the text and the masks behind it, all in one call."""
    sequence = ModelSequence(model, 0, params)
    sequence.extend(prompt.ids[:-1])
    roots, each = [prompt.ids[-1], *written[:-1]], masks.most + 1
    tokens, parents = list(roots), list(range(-1, len(roots) - 1))
    for node in range(len(roots)):
        above = node
        for _ in range(masks.most):
            tokens.append(masks.token)
            parents.append(above)
            above = len(tokens) - 1
    tree = TokenTree(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32))
    ranked = sequence.rank(tree, range(len(tree)), K)
    n = len(roots)
    ids, scores = (
        np.concatenate([part[:n, None], part[n:].reshape(n, each - 1, K)], axis=1)
        for part in ranked
    )
    return Reading(params.temperature, written, ids, scores)


def collect(draft: Path, masks: Masks, texts: int, new: int, batch: int) -> list[Reading]:
    """Every prompt at every temperature."""
    tokenizer = Tokenizer(EMBEDDED / "target")
    prompts = held_out_prompts(tokenizer, texts)
    said = written(EMBEDDED / "target", prompts, tokenizer, new, batch)
    decoder = cpu_decoder(draft, 1024, tokenizer.vocabulary, torch.float32)
    model = EagerModel(decoder, rows=1, capacity=_SLOTS, max_nodes=_SLOTS)
    return [read(model, masks, one.prompt, one.tokens, one.params) for one in said]


def positions(text: Reading, laws: dict[str, dict[str, Any]] | None) -> Iterator[Position]:
    """Nodes of the target's own path that masks named children for.

    laws: by which the chances of a path's later edges are judged; None for the shipped ones
    """
    acceptance, (n, each, _) = read_acceptance(), text.ids.shape
    tables = rank_features(text.scores.reshape(n * each, K), np.zeros(n * each), text.greedy)
    own = tables.reshape(n, each, K, -1)
    edges = acceptance.edges_of(own[:, 0], text.scores[:, 0], text.greedy)
    weights = None if laws is None else np.array(laws[_KINDS[text.greedy]]["weights"])
    for at in range(n):
        path, named, chances = 0.0, text.ids[at, 0].tolist(), edges[at].tolist()
        for offset in range(1, min(each, n - at)):
            token = text.written[at + offset - 1]
            if token not in named:
                break
            path -= math.log(max(chances[named.index(token)], 1e-12))
            named = text.ids[at, offset].tolist()
            again = named.index(token) if token in named else None
            table = mask_features(said_by(own[at, offset]), offset, path, again)
            after = text.written[at + offset]
            yield Position(offset, table, named.index(after) if after in named else None)
            if weights is None:
                chances = acceptance.masked(table, text.greedy)
            else:
                sticks = hazards(np.array(table), weights)
                left = np.concatenate([[1.0], np.cumprod(1 - sticks)[:-1]])
                chances = (sticks * left).tolist()


def fit(texts: Sequence[Reading]) -> dict[str, Any]:
    """The laws and rates of masks, as a record: twice, as the paths' chances depend on the laws."""
    laws: dict[str, dict[str, Any]] | None = None
    for _ in range(2):
        seen = {
            kind: [one for text in texts if text.greedy == greedy for one in positions(text, laws)]
            for greedy, kind in enumerate(_KINDS)
        }
        laws = {kind: _fit_law(some) for kind, some in seen.items()}
    record = read_acceptance().to_record() | {"guessing": {"laws": laws, **_record_of([0.5])}}
    judge = read_model(Json(record, "this fit", InvalidRequest))
    hits = defaultdict[int, list[bool]](list)
    for greedy, kind in enumerate(_KINDS):
        for one in seen[kind]:
            chances = judge.masked(one.table, bool(greedy))
            hits[one.offset].append(one.taken is not None and chances[one.taken] >= LIKELY)
    return {"laws": laws, **_record_of([float(np.mean(hits[at])) for at in sorted(hits)])}


def _fit_law(seen: Sequence[Position]) -> dict[str, Any]:
    table, taken = reached(seen)
    return fit_weights(table, taken, np.full(len(taken), WORTH / len(seen)))


def reached(seen: Sequence[Position]) -> tuple[FloatArray, NDArray[np.bool_]]:  # [n, F], [n]
    """Every child that was come to, and whether it was taken."""
    ends = [K if one.taken is None else one.taken + 1 for one in seen]
    table = np.concatenate([one.table[:end] for one, end in zip(seen, ends, strict=True)])
    taken = np.concatenate(
        [
            np.arange(end) == (-1 if one.taken is None else one.taken)
            for one, end in zip(seen, ends, strict=True)
        ]
    )
    return table, taken


def _record_of(rates: list[float]) -> dict[str, Any]:
    """Rates by offset; those of later masks fall on as the last ones do."""
    fall = (rates[-1] / rates[0]) ** (1 / max(len(rates) - 1, 1))
    later = [rates[-1] * min(fall, 1.0) ** n for n in range(1, OFFSETS - len(rates) + 1)]
    hits = [round(RATES_WORTH * min(max(rate, 0.01), 0.99), 6) for rate in [*rates, *later]]
    return {"tries": [RATES_WORTH] * OFFSETS, "hits": hits}


def shares(texts: Sequence[Reading]) -> Iterator[list[str]]:
    """Shares of positions whose target's token is among the first, by temperature and offset."""
    for temperature in TEMPERATURES:
        some = [text for text in texts if text.temperature == temperature]
        for offset in range(some[0].ids.shape[1]):
            right = np.concatenate(
                [
                    text.ids[: len(text.written) - offset, offset]
                    == np.array(text.written[offset:])[:, None]
                    for text in some
                ]
            )
            row = [f"{right[:, :k].any(axis=1).mean():.3f}" for k in (1, 2, 4, 8)]
            yield [f"{temperature:g}", str(offset), str(len(right)), *row]


class Options(Flags):
    draft: Folder = EMBEDDED / "block_draft"
    texts: int = 12
    """prompts"""
    new: int = 96
    """tokens of a text"""
    batch: int = 36
    """texts written at once"""
    write: FileName | None = None
    """put the fit of all texts into this record"""


def main(given: Options) -> None:
    torch.set_num_threads(1)
    masks = read_masks(given.draft, read_config(given.draft).vocab_size)
    texts = collect(given.draft, masks, given.texts, given.new, given.batch)
    heads = ("T", "offset", "positions", "first", "of 2", "of 4", "of 8")
    print("\n".join(table_lines(heads, shares(texts))))
    if given.write:
        record = json.loads(given.write.read_text(encoding="utf-8"))
        record["guessing"] = fit(texts)
        given.write.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Options, main)
