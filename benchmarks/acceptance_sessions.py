"""Predicted against actual acceptance length of whole sessions, trees and all, with the embedded pair.

    python -m benchmarks.acceptance_sessions [--prior FILE] [--texts 6] [--new 192] [--nodes 16]

One session a line, over texts of several prompts: an AcceptanceModel values the nodes of best-first trees, learns from every verdict
and counts what it expected of it. Beside it the same trees valued by the softmax of the scores, as fixed policies value them. Without
--prior it starts from the shipped record. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.agreement import TEMPERATURES, held_out_prompts, load_one
from inference.acceptance import SHIPPED, FloatArray, read_acceptance
from inference.decode import Step, decode
from inference.drafters.model import ModelDrafter
from inference.engine import Engine
from inference.growth import Growth
from inference.local import LocalVerifier
from inference.policy import Budget, Rank, Ranked, edge_values
from inference.sampling import SamplingParams
from inference.stats import Statistics
from inference.text import Tokenizer
from outrider.models import EMBEDDED

WIDTH, DEPTH = 8, 8


class Values(Protocol):
    """What LearningTrees asks of an AcceptanceModel."""

    def edges(
        self, scores: NDArray[np.float32], depths: Sequence[int], greedy: bool
    ) -> FloatArray: ...

    def observe(
        self, scores: NDArray[np.float32], depth: int, greedy: bool, taken: int | None
    ) -> None: ...

    def count(self, expected: float, accepted: int) -> None: ...


class Softmax:
    """The scores as they are."""

    def edges(self, scores: NDArray[np.float32], depths: Sequence[int], greedy: bool) -> FloatArray:
        return edge_values(scores)

    def observe(
        self, scores: NDArray[np.float32], depth: int, greedy: bool, taken: int | None
    ) -> None:
        """Nothing is learnt."""

    def count(self, expected: float, accepted: int) -> None:
        """Nobody asks."""


class LearningTrees:
    """A Policy: best-first trees whose values are those of an AcceptanceModel, which learns from each verdict by way of learn()."""

    def __init__(self, acceptance: Values, nodes: int, greedy: bool) -> None:
        self._acceptance, self._nodes, self._greedy = acceptance, nodes, greedy
        self._growth = Growth(0, 0)
        self._ranked: dict[int, Ranked] = {}  # [1, WIDTH] of each node that was ranked

    @property
    def most_ranked(self) -> int:
        return self._nodes * DEPTH + 1

    def grow(self, root: int, budget: Budget, rank: Rank) -> Growth:
        self._growth, self._ranked = Growth(root, min(self._nodes, budget.nodes)), {}
        level = [0]
        for depth in range(min(DEPTH, budget.depth)):
            if not level or self._growth.limit < 1:
                break
            ranked = rank(self._growth.tree, level, WIDTH)
            self._ranked |= {
                node: Ranked(ranked.ids[row : row + 1], ranked.scores[row : row + 1])
                for row, node in enumerate(level)
            }
            edges = self._acceptance.edges(ranked.scores, [depth] * len(level), self._greedy)
            worth = (
                np.array([self._growth.values[node] for node in level])[:, None] * edges
            ).ravel()
            least = self._growth.least_of_best(worth.tolist())
            best = [
                index
                for index in np.argsort(-worth, kind="stable").tolist()
                if worth[index] >= max(least, 1e-12)
            ]
            level = [
                self._growth.add(
                    level[index // WIDTH], ranked.ids.ravel()[index], edges.ravel()[index]
                )
                for index in best
            ]
        return self._growth

    @property
    def expected(self) -> float:
        """Nodes of the tree grown last that are expected to be accepted."""
        return sum(self._growth.values[node] for node in self._growth.best()[1:])

    def learn(self, step: Step) -> None:
        """What became of the tree that was grown last."""
        growth, sent = self._growth, self._growth.best()
        path = [0, *(sent[node] for node in step.verdict.path)]
        for node, token in zip(path, step.tokens, strict=True):
            if node in self._ranked:
                ids = self._ranked[node].ids[0].tolist()
                taken = ids.index(token) if token in ids else None
                self._acceptance.observe(
                    self._ranked[node].scores[0], growth.depths[node], self._greedy, taken
                )
        self._acceptance.count(self.expected, len(path) - 1)


class Session(NamedTuple):
    """What came of it. expected: nodes that were expected to be accepted."""

    statistics: Statistics
    expected: float

    @property
    def predicted_length(self) -> float:
        """Tokens a round that were expected, the target's own included."""
        return 1 + self.expected / self.statistics.rounds

    @property
    def actual_length(self) -> float:
        return self.statistics.acceptance_length

    @property
    def calibration(self) -> float:
        return self.predicted_length / self.actual_length


class EmbeddedPair:
    """Both models of the pair that ships here, in float32."""

    def __init__(self, new: int, texts: int) -> None:
        tokenizer = Tokenizer(EMBEDDED / "target")
        self.prompts = [prompt.ids for prompt in held_out_prompts(tokenizer, texts)]
        self._new, length = new, max(len(ids) for ids in self.prompts) + new
        self._draft = load_one(EMBEDDED / "draft", tokenizer, rows=1, length=length + 256)
        target = load_one(EMBEDDED / "target", tokenizer, rows=1, length=length + 64)
        self._engine = Engine(
            target, sequence_length=length, max_tree_nodes=64, vocabulary=tokenizer.vocabulary
        )

    def session(self, acceptance: Values, temperature: float, nodes: int) -> Session:
        """All texts, one after the other, at one temperature."""
        policy, statistics, expected = (
            LearningTrees(acceptance, nodes, temperature == 0),
            Statistics(),
            0.0,
        )
        for seed, prompt in enumerate(self.prompts):
            params = SamplingParams(temperature, seed=seed).on_the_wire()
            verifier = LocalVerifier(self._engine)
            for step in decode(
                prompt, params, ModelDrafter(self._draft, policy), verifier, self._new
            ):
                expected += policy.expected
                policy.learn(step)
                statistics.count(len(step.tree) - 1, len(step.verdict.path))
            verifier.close()
        return Session(statistics, expected)


def report(pair: EmbeddedPair, prior: Path, sizes: Sequence[int]) -> None:
    """A table, a line for each temperature and size of tree."""
    print(
        "| T | nodes | learning: rounds | predicted length | actual length | predicted/actual | softmax: actual length | predicted/actual |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for temperature in TEMPERATURES:
        for nodes in sizes:
            learning, plain = (
                pair.session(values, temperature, nodes)
                for values in (read_acceptance(prior), Softmax())
            )
            lengths = f"{learning.predicted_length:.3f} | {learning.actual_length:.3f} | {learning.calibration:.3f}"
            cells = f"{learning.statistics.rounds} | {lengths} | {plain.actual_length:.3f} | {plain.calibration:.3f}"
            print(f"| {temperature} | {nodes} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prior", type=Path, default=SHIPPED)
    parser.add_argument("--texts", type=int, default=6, help="prompts of a session")
    parser.add_argument("--new", type=int, default=192, help="tokens of a text")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16, 48])
    given = parser.parse_args()
    torch.set_num_threads(1)
    report(EmbeddedPair(given.new, given.texts), given.prior, given.nodes)


if __name__ == "__main__":
    main()
