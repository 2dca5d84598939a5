"""What an acceptance model learns from: a draft's ranking of each token of the target's texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.own_texts import Prompt, Text, load_model, own_texts, read_prompts
from benchmarks.training.corpus import read_texts
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.text.tokenizer import Tokenizer
from inference.tree.token_tree import TokenTree
from outrider.models.found_model import EMBEDDED

WIDTH = 16
"""Ranks that are looked at: no tree has wider nodes."""

TEMPERATURES = (0.0, 0.7, 1.0)
PROMPT_TOKENS = 96  # of a prompt that is cut from a file
CHUNK = 32  # nodes of one call of the draft


@dataclass(frozen=True)
class Agreement:
    """A draft's ranking of each token of a text.

    ids: the draft's likeliest tokens
    scores: as the drafter sees them: log-probabilities at temperature 0, else perturbed
    taken: rank of the target's token, WIDTH where it has none
    depths: of each position in a round, had the text been drafted by trees of varying shape
    """

    text: Text
    temperature: float
    ids: NDArray[np.int32]  # [n, WIDTH]
    scores: NDArray[np.float32]  # [n, WIDTH]
    taken: NDArray[np.int64]  # [n]
    depths: NDArray[np.int64]  # [n]

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def collect(
    target: str, name: str, file: Path, prompts: Path | None, each: int, tokens: int
) -> Iterator[Agreement]:
    """Let a target generate texts that the file lacks, and its draft rank their tokens."""
    found, draft = load_model(name, 1)
    asked = (
        read_prompts(found.tokenizer, prompts, each)
        if prompts
        else held_out_prompts(found.tokenizer, each)
    )
    random = np.random.default_rng(0)
    for temperature in TEMPERATURES:
        for text in own_texts(target, asked, temperature, tokens, file):
            yield read_text(draft, text, temperature, random)


def held_out_prompts(tokenizer: Tokenizer, count: int) -> list[Prompt]:
    """Return beginnings of evenly spread windows of files that the embedded pair has not seen."""
    listing = json.loads((EMBEDDED / "training_files.json").read_text(encoding="utf-8"))
    windows = [
        tuple(ids[cut : cut + PROMPT_TOKENS])
        for ids in map(tokenizer.encode, filter(None, read_texts(listing, "held-out")))
        for cut in range(0, len(ids) - PROMPT_TOKENS, 4 * PROMPT_TOKENS)
    ]
    return [Prompt("python", ids) for ids in windows[:: max(1, len(windows) // count)][:count]]


def read_text(
    draft: Model, text: Text, temperature: float, random: np.random.Generator
) -> Agreement:
    """Rank the tokens of a text with a draft, under the text's own noise."""
    sequence = ModelSequence(draft, 0, text.params)
    sequence.extend(text.prompt[:-1])
    roots = [text.prompt[-1], *text.tokens[:-1]]
    ids, scores = list[NDArray[np.int32]](), list[NDArray[np.float32]]()
    for start in range(0, len(roots), CHUNK):
        chain = TokenTree.chain(roots[start : start + CHUNK])
        ranked = sequence.rank(chain, range(len(chain)), WIDTH)
        sequence.commit(chain, range(1, len(chain)))
        ids.append(ranked.ids)
        scores.append(ranked.scores)
    likeliest = np.concatenate(ids)
    right = likeliest == np.array(text.tokens)[:, None]
    taken = np.where(right.any(axis=1), right.argmax(axis=1), WIDTH)
    depths = _depths(taken.tolist(), random)
    return Agreement(text, temperature, likeliest, np.concatenate(scores), taken, depths)


def _depths(taken: Sequence[int], random: np.random.Generator) -> NDArray[np.int64]:
    """Cut a text into rounds: a round continues while the token is among the first `width` and
    `deepest` is not reached.
    """
    depths, depth, width, deepest = list[int](), 0, 1, 1
    for rank in taken:
        if depth == 0:
            width, deepest = int(random.choice([1, 2, 4, 8])), int(random.choice([4, 6, 8, 16]))
        depths.append(depth)
        depth = depth + 1 if rank < width and depth < deepest else 0
    return np.array(depths)
