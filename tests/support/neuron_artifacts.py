"""Tiny targets built for the stand-in Neuron machine, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from compile.build.build import Builder, Source, build_artifact
from compile.neuron.builder import NeuronBuilder
from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from inference.backends.eager import EagerModel
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import NeuronModel
from inference.engine.engine import Engine
from inference.files.artifact import Bucket, DraftBucket, FusedPart, Manifest, RoundBucket
from inference.model.checkpoints.config import read_raw_config
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.decoder import Decoder
from inference.tree.tree_shape import Branches
from tests.support.models import loaded

LENGTH, TREE, ROWS, VOCABULARY = 64, 8, 2, 59
JUNK = LENGTH + TREE
MASKED = verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=True, words=mask_words(VOCABULARY, 2))
"""A graph with masks, of a target on one rank or two."""
FEW = (verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=True), prefill_bucket(1, 16, JUNK, JUNK))
MORE: tuple[Bucket, ...] = (
    *(
        verify_bucket(ROWS, nodes, slots, JUNK, sampled=sampled)
        for nodes in (2, TREE)
        for slots in (32, JUNK)
        for sampled in (False, True)
    ),
    verify_bucket(1, TREE, JUNK, JUNK, sampled=True),
    prefill_bucket(1, 16, JUNK, JUNK),
)

FUSED_SHAPE = Branches((2, 1))
"""The tree of a round whose draft is in the graph."""


def spec_of(
    tensor_parallel: int = 2, buckets: Sequence[Bucket] = FEW, **changes: Any
) -> CompileSpec:
    spec = CompileSpec(
        "tiny", "trn1", VOCABULARY, tuple(buckets), ROWS, LENGTH, TREE, "float32", tensor_parallel
    )
    return replace(spec, **changes)


def fused_spec_of(draft: Path, ranks: int) -> CompileSpec:
    rounds = tuple(
        RoundBucket.of(FUSED_SHAPE, ROWS, JUNK, JUNK, sampled=sampled) for sampled in (False, True)
    )
    part = FusedPart(
        "tiny draft",
        fingerprint(draft),
        read_raw_config(draft),
        (DraftBucket(1, 16, JUNK, 1, 1, False, JUNK),),
        rounds,
    )
    alone = (verify_bucket(ROWS, TREE, JUNK, JUNK, sampled=True), MASKED)
    return CompileSpec(
        "tiny", "trn1", VOCABULARY, alone, ROWS, LENGTH, TREE, "float32", ranks, fused=part
    )


def source_of(checkpoint: Path) -> Source:
    raw = read_raw_config(checkpoint)
    return Source(checkpoint, fingerprint(checkpoint), "tokenizer", raw, (2,))


def build(
    directory: Path,
    checkpoint: Path,
    spec: CompileSpec,
    builder: Callable[[CompileSpec, Path], Builder] = NeuronBuilder,
    said: list[str] | None = None,
) -> Manifest:
    say = ([] if said is None else said).append
    source = source_of(checkpoint)
    return build_artifact(
        spec, source, builder(spec, checkpoint), directory, command="test", say=say
    )


def built_model(
    directory: Path,
    checkpoint: Path,
    spec: CompileSpec,
    builder: Callable[[CompileSpec, Path], Builder] = NeuronBuilder,
) -> NeuronModel:
    return load_neuron(directory, build(directory, checkpoint, spec, builder), lambda line: None)


def whole(checkpoint: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return loaded(checkpoint, LENGTH, VOCABULARY, dtype)


def eager_of(checkpoint: Path) -> EagerModel:
    return EagerModel(whole(checkpoint), rows=ROWS, capacity=JUNK, max_nodes=16)


def engine_of(model: Any, **options: Any) -> Engine:
    return Engine(
        model, sequence_length=LENGTH, max_tree_nodes=TREE, vocabulary=VOCABULARY, **options
    )
