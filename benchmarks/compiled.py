"""Gain of compiling for the CPU: a forward by nodes, compiled against eager.

    python -m benchmarks.compiled [--model DIR] [--dtype bfloat16]

Median milliseconds and process CPU milliseconds of one row; shapes are visited in turn, so that a
busy machine slows all alike. The graphs are compiled first, which takes minutes for a large model;
--keep DIR goes on from what an earlier run built there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    Flags,
    Folder,
    JsonFile,
    cpu_decoder,
    heap,
    run,
    show,
    with_cpu,
)
from compile.build.build import build_artifact, read_source
from compile.build.cpu import CpuBuilder
from compile.build.progress import BuildProgress
from compile.spec import CompileSpec, least_nodes, verify_bucket
from inference.artifact import Bucket
from inference.backends import Model
from inference.backends.compiled import (
    CompiledModel,
    load_compiled,
    read_compiled,
)
from inference.backends.eager import EagerModel
from inference.flags.values import Counts
from inference.model.checkpoint import DTYPES
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.models.directories import EMBEDDED
from outrider.options.groups import Precision


def compiled_model(
    model: Path, dtype: str, capacity: int, buckets: tuple[Bucket, ...], directory: Path
) -> tuple[CompiledModel, float]:
    """The model with these graphs, and the seconds that building them took."""
    vocabulary, most = Tokenizer(model).vocabulary, max(bucket.nodes for bucket in buckets)
    spec = CompileSpec(
        model.name,
        "cpu",
        vocabulary,
        buckets,
        rows=1,
        sequence_length=capacity - most,
        max_tree_nodes=most,
        dtype=dtype,
    )
    start = time.perf_counter()
    build_artifact(
        spec,
        read_source(model),
        CpuBuilder(spec, model),
        directory,
        command="python -m benchmarks.compiled",
        progress=BuildProgress(lambda line: print(line, flush=True)),
    )
    seconds = time.perf_counter() - start
    return load_compiled(directory, read_compiled(directory)), seconds


def by_nodes(
    model: Path,
    dtype: str,
    nodes: Sequence[int],
    context: int,
    sampled: bool,
    repetitions: int,
    directory: Path,
) -> dict[str, Any]:
    """Forward time by nodes, eager and compiled; the artefact is built in the directory."""
    slots, most = -(-context // 64) * 64, max(nodes)
    capacity = slots + 2 * most
    sizes = sorted({max(size, least_nodes(dtype)) for size in nodes})
    buckets = tuple(verify_bucket(1, size, slots, capacity, sampled=sampled) for size in sizes)
    # What every artefact must have:
    whole = verify_bucket(1, most, capacity, capacity, sampled=sampled)
    compiled, seconds = compiled_model(model, dtype, capacity, (*buckets, whole), directory)
    decoder = cpu_decoder(model, capacity - most, Tokenizer(model).vocabulary, DTYPES[dtype])
    models: dict[str, Model] = {
        f"eager {dtype}": EagerModel(decoder, rows=1, capacity=capacity, max_nodes=most),
        f"compiled {dtype}": compiled,
    }
    params = SamplingParams(1.0, seed=1) if sampled else SamplingParams()
    calls = {
        f"{name} {size}": partial(served.choose, [heap(size, context, params)])
        for size in nodes
        for name, served in models.items()
    }
    return {f"build_seconds {dtype}": round(seconds, 1)} | with_cpu(calls, repetitions)


class Options(Flags):
    model: Folder = EMBEDDED / "target"
    dtype: Precision = "float32"
    nodes: Counts = (1, 8, 16, 32, 64)
    context: int = 256
    sampled: bool = False
    """at temperature 1 instead of greedy"""
    threads: int = 1
    repetitions: int = 15
    keep: Folder | None = None
    """build here, and go on from what is there"""
    json_file: JsonFile = None


def main(given: Options) -> None:
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as scratch:
        figures = by_nodes(
            given.model,
            given.dtype,
            given.nodes,
            given.context,
            given.sampled,
            given.repetitions,
            given.keep or Path(scratch),
        )
    show(figures, given.json_file)


if __name__ == "__main__":
    run(Options, main)
