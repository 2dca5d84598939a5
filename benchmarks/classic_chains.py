"""Chains under both rules, from the target's own texts alone: what benchmarks/classic.py measures, with far less noise.

    python -m benchmarks.classic_chains [--texts 60] [--new 64] [--temperatures 0.7 1.0] [--json FILE]

Along a text that the target wrote, matching accepts the draft's token where it is the text's own. Rejection accepted the text's token y
with probability min(1, q(y) / p(y)): of all draws that end in y, that share was the draft's. So both rules walk the same texts, with no
tree drawn and both probabilities read in one pass; the second rule is walked WALKS times with chance of its own. Lengths are ratios of
sums, and the interval of a ratio is a percentile bootstrap (95 %) over texts. A round that a text's end cuts off is not counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.agreement import Prompt, held_out_prompts, load_one
from benchmarks.classic import CHAINS, Lengths, ratio
from inference.backends.eager import EagerModel
from inference.engine import Engine
from inference.local import LocalVerifier
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.models import EMBEDDED

WALKS = 20
Chances = NDArray[np.float64]
"""[n] probability that the draft's token is accepted, at each token of a text."""


class Pair:
    """Both models, and what they say of texts of `new` tokens."""

    def __init__(self, texts: int, new: int) -> None:
        tokenizer = Tokenizer(EMBEDDED / "target")
        self.prompts, self.new = held_out_prompts(tokenizer, texts), new
        length = max(len(prompt.ids) for prompt in self.prompts) + new
        self._target, self._draft = (
            load_one(EMBEDDED / kind, tokenizer, rows=1, length=length)
            for kind in ("target", "draft")
        )
        self._engine = Engine(
            self._target, sequence_length=length, max_tree_nodes=1, vocabulary=tokenizer.vocabulary
        )

    def chances(self, prompt: Prompt, params: SamplingParams) -> tuple[Chances, Chances]:
        """By matching (0 or 1) and by rejection, along the text that the target writes with this seed."""
        text = self._write(prompt, params)
        ids = [*prompt.ids, *text]
        asked = TokenTree.chain(ids[:-1])
        first, rows = len(prompt.ids) - 1, np.arange(len(text))
        target, draft = (
            _probabilities(model, asked, params)[first:][rows, text]
            for model in (self._target, self._draft)
        )
        guessed = (
            ModelSequence(self._draft, 0, params).rank(asked, range(len(asked)), 1).ids[first:, 0]
        )
        return (guessed == text).astype(np.float64), np.minimum(1.0, draft / target)

    def _write(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        verifier = LocalVerifier(self._engine)
        verifier.open(prompt.ids, params).result()
        text = list(verifier.generate(self.new, frozenset()))
        verifier.close()
        return text


def _probabilities(
    model: EagerModel, asked: TokenTree, params: SamplingParams
) -> NDArray[np.float64]:  # [n, V]
    return model.distributions([ModelSequence(model, 0, params).prepare(asked)])[0].astype(
        np.float64
    )


def walk(accepted: NDArray[np.bool_], length: int) -> tuple[int, int]:
    """Tokens and rounds of chains of this length along a text, where each of its tokens would or would not be accepted."""
    at = rounds = 0
    while True:
        chain = accepted[at : at + length]
        end = at + (len(chain) if chain.all() else int(chain.argmin())) + 1
        if end > len(accepted):
            return at, rounds
        at, rounds = end, rounds + 1


def walked(texts: Sequence[Chances], length: int, times: int) -> Lengths:
    """Of chains of this length, over all texts."""
    chance = np.random.default_rng(length)
    totals = [
        np.sum([walk(chance.random(len(text)) < text, length) for _ in range(times)], axis=0)
        for text in texts
    ]
    return Lengths(*np.array(totals).T)


def compare(pair: Pair, temperature: float) -> list[dict[str, object]]:
    """One row a length of chain, told as it is known."""
    both = [
        pair.chances(prompt, SamplingParams(temperature, seed=seed).on_the_wire())
        for seed, prompt in enumerate(pair.prompts)
    ]
    matched, rejected = [one for one, _ in both], [one for _, one in both]
    print(
        f"T {temperature}: accepted, token by token: match {np.mean(matched):.3f}, classic {np.mean(rejected):.3f}",
        flush=True,
    )
    rows = []
    for length in CHAINS:
        match, classic = walked(matched, length, 1), walked(rejected, length, WALKS)
        gain = ratio(classic, match)
        lengths = f"{match.acceptance_length:.3f} | {classic.acceptance_length:.3f}"
        print(
            f"| {temperature} | chain of {length} | {lengths} | {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}) |",
            flush=True,
        )
        row = {
            "match": match.acceptance_length,
            "classic": classic.acceptance_length,
            "ratio": gain._asdict(),
        }
        rows.append({"temperature": temperature, "length": length, **row})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pair = Pair(options.texts, options.new)
    print(
        f"{len(pair.prompts)} texts of {pair.new} tokens\n| T | shape | match | classic | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    rows = [row for temperature in options.temperatures for row in compare(pair, temperature)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
