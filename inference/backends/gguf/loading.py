"""Loads a GGUF file's model, and tests it with a small tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.backends.gguf.branches import LlamaContext
from inference.backends.gguf.library import (
    MIN_BATCH,
    SEQUENCES,
    GgufContext,
    GgufFacts,
    TokenBatch,
)
from inference.backends.gguf.model import GgufModel
from inference.backends.gguf.states import GgufStates
from inference.backends.gguf.trees import GgufTrees
from inference.backends.libraries.tree_trial import TreeTrial
from inference.errors import LimitExceeded, Mismatch, UnsupportedModel
from inference.tree.token_tree import IntArray


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
    kind: type[GgufTrees | GgufStates] = GgufStates if facts.states else GgufTrees
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
    context: LlamaContext, kind: type[GgufTrees | GgufStates], vocabulary: int, *, float32: bool
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
    """Compute the logits of a path alone, and remove its keys."""
    n = len(path)
    picked = np.ones(n, dtype=np.bool_)
    logits = context.decode(TokenBatch(path, np.arange(n, dtype=np.int32), [[0]] * n, picked))
    context.remove(0, 0)
    return logits.copy()  # the next call overwrites them
