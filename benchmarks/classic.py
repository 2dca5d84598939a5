"""Acceptance length of classic acceptance against matching under shared noise, with the embedded pair.

    python -m benchmarks.classic [--texts 40] [--new 64] [--chains 1 2 3 4 5 6 7 8] [--temperatures 0.7 1.0] [--json FILE]

Chains and trees of 8 and 32 nodes, each under both rules, over the same prompts from held-out files. A tree has the best
fixed shape for the rule's own rates by rank, which are measured first, on other prompts; matching also grows its trees best-first, as it
does by default. The acceptance length is tokens per pass of the target, a ratio of sums over texts; the interval of a ratio of two is a
percentile bootstrap (95 %) over texts, which are pairs by prompt. Nothing is timed, and no tree is cut for the sake of time.
`benchmarks/classic_chains.py` tells what chains gain more exactly, and in less time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.agreement import Prompt, held_out_prompts, load_one
from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.decode import Drafter, Step, decode
from inference.drafters.classic import ClassicDrafter
from inference.drafters.model import ModelDrafter
from inference.engine import Engine
from inference.local import LocalVerifier
from inference.model.checkpoint import load_decoder
from inference.policy import BestFirst, Chain, Policy, Static
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.comparison.spread import CONFIDENCE, DRAWS
from outrider.models import EMBEDDED

CHAINS, TREES, DEPTH = range(1, 9), (8, 32), 6
RANKS = 8
ROOM = 256
"""Slots beyond a text: what growing a tree of 32 nodes best-first may rank."""

Rule = Callable[[Model, Policy], Drafter]


class Lengths(NamedTuple):
    """What each text took."""

    tokens: NDArray[np.int64]  # [texts]
    rounds: NDArray[np.int64]  # [texts]

    @property
    def acceptance_length(self) -> float:
        return float(self.tokens.sum() / self.rounds.sum())


class Ratio(NamedTuple):
    """Of two acceptance lengths, and its interval."""

    value: float
    low: float
    high: float


class Even(EagerModel):
    """A target whose calls all count as equally large, so that the engine cuts no tree."""

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, self.max_nodes


class Bench:
    """The pair, and prompts for measuring and for calibrating. `new`: tokens of each text."""

    def __init__(self, texts: int, new: int) -> None:
        tokenizer = Tokenizer(EMBEDDED / "target")
        prompts = held_out_prompts(tokenizer, texts + texts // 4)
        self.prompts, self.others, self.new = (
            [prompt for place, prompt in enumerate(prompts) if place % 5],
            prompts[::5],
            new,
        )
        length = max(len(prompt.ids) for prompt in prompts) + new
        weights = load_decoder(
            EMBEDDED / "target",
            positions=length,
            vocabulary=tokenizer.vocabulary,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        target = Even(weights, rows=1, capacity=length + ROOM, max_nodes=ROOM)
        self.engine = Engine(
            target, sequence_length=length, max_tree_nodes=64, vocabulary=tokenizer.vocabulary
        )
        self.draft = load_one(EMBEDDED / "draft", tokenizer, rows=1, length=length + ROOM)

    def steps(
        self, prompt: Prompt, rule: Rule, policy: Policy, params: SamplingParams
    ) -> list[Step]:
        verifier = LocalVerifier(self.engine)
        steps = list(decode(prompt.ids, params, rule(self.draft, policy), verifier, self.new))
        verifier.close()
        return steps

    def lengths(self, rule: Rule, policy: Policy, temperature: float) -> Lengths:
        texts = [
            self.steps(prompt, rule, policy, SamplingParams(temperature, seed=seed))
            for seed, prompt in enumerate(self.prompts)
        ]
        return Lengths(
            np.array([sum(len(step.tokens) for step in steps) for steps in texts]),
            np.array([len(steps) for steps in texts]),
        )

    def rates(self, rule: Rule, temperature: float) -> tuple[float, ...]:
        """How often the child of each rank is the accepted one, from stars of RANKS children; made non-increasing."""
        star, counts, rounds = Static((1 / RANKS,) * RANKS, RANKS, 1), np.zeros(RANKS), 0
        for seed, prompt in enumerate(self.others):
            for step in self.steps(
                prompt, rule, star, SamplingParams(temperature, seed=1000 + seed)
            ):
                rounds += 1
                counts[[node - 1 for node in step.verdict.path]] += 1
        return tuple(np.maximum(np.minimum.accumulate(counts / rounds), 1e-3).round(4).tolist())


def ratio(one: Lengths, other: Lengths) -> Ratio:
    """Of the acceptance lengths of the same prompts under two rules."""
    picks = np.random.default_rng(1).integers(0, len(one.tokens), (DRAWS, len(one.tokens)))
    drawn = [
        lengths.tokens[picks].sum(1) / lengths.rounds[picks].sum(1) for lengths in (one, other)
    ]
    low, high = np.quantile(
        drawn[0] / drawn[1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    ).tolist()
    return Ratio(one.acceptance_length / other.acceptance_length, low, high)


def compare(bench: Bench, chains: Sequence[int], temperature: float) -> list[dict[str, object]]:
    """One row a shape, told as it is measured."""
    rates = {
        name: bench.rates(rule, temperature)
        for name, rule in (("match", ModelDrafter), ("classic", ClassicDrafter))
    }
    for name, known in rates.items():
        print(
            f"T {temperature}: rates by rank, {name}: {', '.join(f'{rate:.3f}' for rate in known)}",
            flush=True,
        )
    rows = []
    for length in chains:
        drawn = bench.lengths(ClassicDrafter, Chain(length), temperature)
        rows.append(
            _row(
                f"{temperature} | chain of {length}",
                bench.lengths(ModelDrafter, Chain(length), temperature),
                drawn,
            )
        )
    for nodes in TREES:
        matched: list[tuple[str, Policy]] = [
            ("both fixed", Static(rates["match"], nodes, DEPTH)),
            ("match best-first", BestFirst(nodes, DEPTH)),
        ]
        drawn = bench.lengths(ClassicDrafter, Static(rates["classic"], nodes, DEPTH), temperature)
        for how, policy in matched:
            rows.append(
                _row(
                    f"{temperature} | tree of {nodes}, {how}",
                    bench.lengths(ModelDrafter, policy, temperature),
                    drawn,
                )
            )
    return [{"temperature": temperature, "rates": rates, **row} for row in rows]


def _row(shape: str, match: Lengths, classic: Lengths) -> dict[str, object]:
    gain = ratio(classic, match)
    interval = f"{gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f})"
    print(
        f"| {shape} | {match.acceptance_length:.3f} | {classic.acceptance_length:.3f} | {interval} |",
        flush=True,
    )
    return {
        "shape": shape,
        "match": match.acceptance_length,
        "classic": classic.acceptance_length,
        "ratio": gain._asdict(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--chains", type=int, nargs="*", default=list(CHAINS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bench = Bench(options.texts, options.new)
    print(
        f"{len(bench.prompts)} texts of {bench.new} tokens\n| T | shape | match | classic | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    rows = [
        row
        for temperature in options.temperatures
        for row in compare(bench, options.chains, temperature)
    ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
