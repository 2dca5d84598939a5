"""A GGUF file's model as a Model, run by llama.cpp and tested with a small tree at load time.

llama.cpp's results depend on the batch and on the order of cells. So the output equals that of the
target alone except at near-ties of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.gguf.library import (
    MIN_BATCH,
    SEQUENCES,
    GgufContext,
    GgufFacts,
    LlamaContext,
    TokenBatch,
)
from inference.backends.gguf.states import GgufStates
from inference.backends.gguf.trees import GgufTrees
from inference.backends.libraries.host_choice import Floats, choose_of_row, rank_of_row
from inference.backends.libraries.tree_lines import TreeTrial
from inference.backends.sequence import ModelSequence
from inference.errors import LimitExceeded, Mismatch, UnsupportedModel
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree

T = TypeVar("T")


Computation: TypeAlias = GgufTrees | GgufStates
"""Computes the new nodes of segments by llama.cpp."""


class GgufModel:
    """The model of a GGUF file.

    vocabulary: number of token ids of the tokenizer; higher ids are never chosen
    kind: llama.cpp's description of the weights
    device: cpu, or cuda:N for the N-th GPU
    """

    masks = True

    def __init__(
        self,
        computation: Computation,
        *,
        max_nodes: int,
        vocabulary: int,
        kind: str,
        threads: int,
        device: str,
    ) -> None:
        self.rows, self.capacity = computation.rows, computation.capacity
        self.branches = computation.branches
        self.max_nodes = max_nodes
        self.device, self.dtype, self.threads = device, kind, threads
        self._computation, self._vocabulary = computation, vocabulary

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._each(segments, lambda segment, logits: choose_of_row(logits, segment))

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._each(segments, lambda segment, logits: rank_of_row(logits, segment, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._computation.copy_row(source, target, slots)

    def logits_of(self, prompt: Sequence[int], tree: TokenTree) -> NDArray[np.float32]:  # [n, V]
        """Return the logits at every node of a tree after a prompt, using row 0."""
        sequence = ModelSequence(self, 0, SamplingParams())
        sequence.extend(prompt)
        return self._each([sequence.prepare(tree)], lambda segment, logits: logits.copy())[0]

    def _each(self, segments: Sequence[Segment], use: Callable[[Segment, Floats], T]) -> list[T]:
        """Compute segments, and return the result of `use(segment, logits [p, V])` for each."""
        check_rows(segments)
        for segment in segments:
            self._check(segment)
        computed = self._computation.logits(segments)
        return [use(segment, logits[:, : self._vocabulary]) for segment, logits in computed]

    def _check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that is too large for a decode."""
        nodes, highest = len(segment.tokens), segment.positions.max()
        if nodes > self.max_nodes:
            raise LimitExceeded(f"{nodes} nodes in one call: this model takes {self.max_nodes}")
        self._computation.check(segment)
        if highest >= self.capacity:
            raise LimitExceeded(f"position {highest}: this model has {self.capacity} slots a row")


def load_gguf(
    path: Path,
    facts: GgufFacts,
    *,
    rows: int,
    capacity: int,
    max_nodes: int,
    vocabulary: int,
    threads: int,
    gpu: int | None = None,
) -> GgufModel:
    """Load a GGUF file's model.

    vocabulary: number of token ids of the tokenizer
    gpu: index of the GPU that computes all layers (not yet run on hardware); None for the CPU

    Raises MissingExtra, Mismatch, LimitExceeded, Unavailable, and UnsupportedModel if the logits of
    a tree differ from those of its paths.
    """
    if vocabulary > len(facts.tokens):
        raise Mismatch(f"{path} has {len(facts.tokens)} token ids, but the tokenizer {vocabulary}")
    shadows = facts.needs_shadows(capacity)
    kind: type[Computation] = GgufStates if facts.states else GgufTrees
    sequences = SEQUENCES // (1 + shadows)
    if rows > (limit := kind.max_rows(sequences)):
        raise LimitExceeded(f"{rows} rows: this GGUF model takes up to {limit}")
    sizes = kind.sizes(rows, capacity, max_nodes, sequences)
    context = GgufContext(path, facts, sizes, shadows=shadows, threads=threads, gpu=gpu)
    try:
        check_trees(context, kind, vocabulary, float32=facts.float32)
    except ValueError as error:
        raise UnsupportedModel(f"{path}: architecture {facts.architecture}: {error}") from error
    return GgufModel(
        kind(context, rows=rows, capacity=capacity, batch=sizes.batch),
        max_nodes=max_nodes,
        vocabulary=vocabulary,
        kind=facts.weights,
        threads=threads,
        device="cpu" if gpu is None else f"cuda:{gpu}",
    )


def check_trees(
    context: LlamaContext, kind: type[Computation], vocabulary: int, *, float32: bool
) -> None:
    """Raise ValueError unless the logits of a tree equal those of its paths.

    context: must have no keys, and has none afterwards
    """
    trial = TreeTrial.of(vocabulary)
    paths = np.stack([_path_logits(context, path)[:, :vocabulary] for path in trial.paths])
    tried = kind(context, rows=1, capacity=trial.tokens, batch=MIN_BATCH)
    model = GgufModel(
        tried,
        max_nodes=trial.tokens,
        vocabulary=vocabulary,
        kind="trial",
        threads=1,
        device="trial",
    )
    nodes = model.logits_of(trial.prompt, trial.tree)
    for sequence in range(context.sequences):
        context.remove(sequence, 0)
    trial.check(nodes, paths, float32=float32)


def _path_logits(context: LlamaContext, path: IntArray) -> NDArray[np.float32]:  # [n, ids]
    n = len(path)
    picked = np.ones(n, dtype=np.bool_)
    logits = context.decode(TokenBatch(path, np.arange(n, dtype=np.int32), [[0]] * n, picked))
    context.remove(0, 0)
    return logits.copy()  # the next call overwrites them
