"""Chooses the builder of a spec, and builds the artefact for `--device neuron` without --artifact.
Builders are only imported when chosen, because each needs its own compiler.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from compile.build.build import Builder, Say, build_artifact, hash_of, read_source
from compile.plan.fit import check_fits
from compile.plan.memory import device_of, footprint, gib, processors, worker_memory, workers_within
from compile.plan.report import describe
from compile.spec import CompileSpec
from compile.store import open_store
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import MANIFEST, NATIVE, read_manifest
from inference.files.writing import cache_directory
from inference.model.checkpoints.config import read_config


def builder_of(
    spec: CompileSpec,
    checkpoint: Path,
    draft: Path | None = None,
    *,
    graph_store: str | None = None,
    quiet: bool = True,
) -> Builder:
    """Return the builder for the spec; for CPU, with several processes if memory allows.

    draft: the checkpoint of the draft in the graphs, if the spec has one
    graph_store: store of compiled graphs that machines share, for trn1 and inf2
    quiet: whether to hide the output of libraries in processes
    """
    if spec.target in NATIVE:
        if graph_store is not None:
            raise InvalidRequest(
                f"--graph_store is for other targets: {spec.target} compiles graph by graph, and "
                "an artefact holds what was compiled"
            )
        from compile.neuron.native import TorchNeuronBuilder
        from inference.backends.native.sdk import check_native

        return TorchNeuronBuilder(spec, checkpoint, versions=check_native(spec.target))
    if spec.target == "cpu":
        return _cpu_builder(spec, checkpoint, draft, quiet)
    from compile.neuron.builder import NeuronBuilder
    from compile.neuron.compiler import NeffCache

    store = None if graph_store is None else open_store(graph_store)
    cache = NeffCache(cache_directory("neuron_graphs"), store)
    return NeuronBuilder(spec, checkpoint, draft, cache=cache)


def _cpu_builder(spec: CompileSpec, checkpoint: Path, draft: Path | None, quiet: bool) -> Builder:
    from compile.build.cpu import CpuBuilder, InProcesses

    weights = footprint(read_config(checkpoint), spec).weights
    workers = workers_within(processors(), worker_memory(spec.target, weights))
    make = partial(CpuBuilder, spec, checkpoint, draft)
    return InProcesses(make, min(workers, len(spec.graphs)), quiet=quiet)


def neuron_artifact(
    spec: CompileSpec, checkpoint: Path, cache: Path, *, command: str, say: Say
) -> Path:
    """Return the directory of a complete artefact for the spec: from the cache, under a hash of all
    inputs, or newly built. A build takes long, so its cost is printed first. An interrupted build
    is continued.
    """
    source, config = read_source(checkpoint), read_config(checkpoint)
    need = check_fits(config, spec)
    builder = builder_of(spec, checkpoint)
    tools = builder.made_with()
    made_from = {
        "spec": asdict(spec),
        "model": source.model_fingerprint,
        "versions": dict(tools.versions),
        "flags": dict(tools.flags),
    }
    directory = cache / hash_of(made_from)[:16]
    if _complete(directory):
        say(f"using the artefact in {directory}")
        return directory
    for line in describe(spec, config, need):
        say(line)
    say(
        f"host memory: {gib((spec.tensor_parallel + 1) * need.weights)} at least to shard the "
        f"weights, then {gib(2 * need.weights)} and the compilers' memory; this machine has "
        f"{gib(device_of('cpu').memory)}"
    )
    say(f"building it in {directory}; the compiler may take minutes for each graph")
    build_artifact(spec, source, builder, directory, command=command, say=say)
    return directory


def _complete(directory: Path) -> bool:
    try:
        return (directory / MANIFEST).is_file() and bool(read_manifest(directory).files)
    except BadArtifact:
        return False
