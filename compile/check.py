"""The first test on a Neuron instance, which `outrider prove` runs in a process of its own.

It compares the device's noise with the contract, builds one graph, compares its choices with those
of the eager model, and takes the time of a call. It needs no other machine and leaves its artefact
in --out. Not yet run on hardware.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compile import probe
from compile.agreement import agreements, random_tree
from compile.build.build import build_artifact, load_whole, read_source
from compile.build.neuron_builder import NeuronBuilder
from compile.build.neuron_compiler import PLATFORMS
from compile.build.progress import BuildProgress
from compile.compile_options import CompileOptions, parse
from compile.plan.fit import usual_ranks
from compile.request import BuildCheckpoint, find_checkpoint
from compile.spec import CompileSpec, least_nodes, verify_bucket
from inference.artifact import check_files
from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import (
    has_device,
    instance_family,
    reserve_cores,
    sdk_versions,
)
from inference.backends.sequence import ModelSequence
from inference.command import run_command, say
from inference.errors import InvalidRequest
from inference.model.float8 import in_float8
from inference.sampling import SamplingParams

_SMALL = ("--sequence_length", "512", "--max_tree_nodes", "16")
"""Sizes where the command line says nothing else."""
CALLS = 100
"""Calls that are timed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test with the flags of `outrider compile`. Returns 1 where the device computes
    something else, or the flags are wrong.
    """
    options = parse([*_SMALL, *(sys.argv[1:] if arguments is None else arguments)])
    return run_command(lambda: _check(options), debug=options.debug)


def _check(options: CompileOptions) -> int:
    if options.device not in PLATFORMS:
        raise InvalidRequest("--target is needed: trn1 or inf2, which this test is for")
    if not has_device():
        raise InvalidRequest(
            "no Neuron device here: run this on the instance; to compile without a device use "
            "outrider compile"
        )
    versions = ", ".join(f"{name} {number}" for name, number in sdk_versions().items())
    print(f"instance {instance_family() or 'unknown'}; {versions}")
    checkpoint, out = find_checkpoint(options), Path(options.out or "")
    spec = _spec(options, checkpoint)
    reserve_cores(spec.tensor_parallel)
    probe.check_noise(spec, out / "noise")  # where it is wrong, no model need be compiled
    print(f"noise: all {len(probe.ROWS) * probe.TOKENS} values as on the host")
    start = time.perf_counter()
    manifest = build_artifact(
        spec,
        read_source(checkpoint.directory),
        NeuronBuilder(spec, checkpoint.directory),
        out,
        command="outrider prove",
        progress=BuildProgress(say),
    )
    print(f"built {spec.buckets[0].name} in {time.perf_counter() - start:.0f} s, artefact in {out}")
    check_files(out, manifest)
    model = load_neuron(out, manifest, say)
    eager = _eager(spec, checkpoint.directory, model.max_nodes)
    found = list(agreements(model, eager, manifest))
    print(*found, sep="\n")
    taken, nodes = time_call(model, spec.vocabulary, spec.max_tree_nodes), spec.max_tree_nodes
    print(f"{taken:.2f} ms a call (median of {CALLS}), {nodes} nodes")
    if not all(agreement.is_enough for agreement in found):
        print("check: FAILED, the device does not choose as the eager model does")
        return 1
    print("check: passed")
    return 0


def _spec(options: CompileOptions, checkpoint: BuildCheckpoint) -> CompileSpec:
    """The spec of the test: one row and one sampled graph, which prompts go through as well."""
    nodes = max(options.max_tree_nodes, least_nodes(options.precision))
    length = min(options.sequence_length or 512, checkpoint.config.max_positions)
    capacity = length + nodes
    return CompileSpec(
        model=checkpoint.name,
        target=options.device,
        vocabulary=checkpoint.vocabulary,
        buckets=(verify_bucket(1, nodes, capacity, capacity, sampled=True),),
        rows=1,
        sequence_length=length,
        max_tree_nodes=nodes,
        dtype=options.precision,
        tensor_parallel=options.tensor_parallel or usual_ranks([checkpoint.config], options.device),
        compiler_flags=options.compiler_flags,
    )


def _eager(spec: CompileSpec, directory: Path, most: int) -> EagerModel:
    """The model that the device's choices are compared with, on the CPU."""
    decoder = load_whole(spec, directory)
    whole = in_float8(decoder) if spec.dtype == "fp8" else decoder
    return EagerModel(whole, rows=1, capacity=spec.capacity, max_nodes=most)


def time_call(model: Model, vocabulary: int, nodes: int) -> float:
    """Median milliseconds of a verification, padding and transfers included."""
    generator, seconds = np.random.default_rng(6), list[float]()
    sequence = ModelSequence(model, 0, SamplingParams(1.0, seed=7))
    sequence.extend(generator.integers(0, vocabulary, 16).tolist())
    for _ in range(CALLS):
        tree = random_tree(generator, 1, nodes, vocabulary)
        start = time.perf_counter()
        sequence.choose(tree)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


if __name__ == "__main__":
    sys.exit(main())
