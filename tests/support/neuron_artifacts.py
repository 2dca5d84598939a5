"""Tiny targets for the stand-in Neuron machine, and for native PyTorch on this machine's CPUs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func

from compile.build.build import Builder, Source, build_artifact
from compile.neuron.builder import NeuronBuilder
from compile.neuron.native import TorchNeuronBuilder
from compile.spec import CompileSpec, mask_words, prefill_bucket, verify_bucket
from inference.backends.eager import EagerModel
from inference.backends.native.sdk import Machine
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import NeuronModel
from inference.engine.engine import Engine
from inference.files.artifact import Bucket, DraftBucket, FusedPart, Manifest, RoundBucket
from inference.model.checkpoints.config import read_raw_config
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.decoder import Decoder
from inference.tree.tree_shape import Branches
from tests.support.artifacts import planned_manifest
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
    return replace(spec_of(ranks, alone), fused=part)


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


COLLECTIVES = frozenset(("all_reduce", "all_gather_into_tensor", "wait_tensor"))


def strict(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a graph as TorchNeuron would: RuntimeError for what it would not take."""
    from torch._dynamo.backends.common import aot_autograd  # seconds, where nothing compiles

    backend = aot_autograd(fw_compiler=_checked, keep_inference_input_mutations=True)
    made: Callable[..., Any] = backend(graph, examples, **options)
    return made


def dying_once(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Any:
    """Compile as `strict` does, but for the first graph of all, at which the compiler dies."""
    death = Path(os.environ[DEATH])
    if death.exists():
        return strict(graph, examples, **options)
    death.touch()
    raise RuntimeError("neuronx-cc compilation failed with 70. Check compiler logs.")


DEATH = "TEST_COMPILER_DEATH"
CPU = Machine("cpu", strict, "gloo")
"""A machine whose ranks run on this one's processors."""


def _checked(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    for example in examples:
        if not isinstance(example, torch.Tensor):
            raise RuntimeError(f"dynamic shapes are not supported: {example} is an input")
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        name = getattr(node.target, "overloadpacket", node.target).__name__
        if "c10d" in str(node.target) and name not in COLLECTIVES:
            raise RuntimeError(f"the collective {name} is not supported")
    _keep(graph)
    boxed: Callable[..., Any] = make_boxed_func(graph.forward)
    return boxed


def _keep(graph: fx.GraphModule) -> None:
    """Leave a file for this program, unless there is one."""
    kept = Path(os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"])
    described = [graph.code, *(str(node.meta.get("val")) for node in graph.graph.nodes)]
    digest = hashlib.sha256("".join(described).encode()).hexdigest()
    path = kept / digest[:2] / f"{digest}.neff"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def native_spec(ranks: int = 2, buckets: Sequence[Bucket] = FEW) -> CompileSpec:
    return replace(spec_of(ranks, buckets), target="trn2")


def native_builder(checkpoint: Path, spec: CompileSpec) -> TorchNeuronBuilder:
    return TorchNeuronBuilder(
        spec, checkpoint, versions={"torch-neuronx": "2.14.3.0.1"}, machine=CPU
    )


def prepared(directory: Path, checkpoint: Path, spec: CompileSpec) -> Manifest:
    """Weights in a directory, and the manifest of an artefact of which nothing was compiled yet."""
    (directory / "weights").mkdir(parents=True)
    builder = native_builder(checkpoint, spec)
    builder.prepare(directory)
    return planned_manifest(spec, source_of(checkpoint), builder)
