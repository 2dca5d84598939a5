"""Finds or builds the artefact of `--device neuron` without --artifact. Before a build it prints
what the build takes.

Artefacts lie under one directory. Each is named by a hash of everything it is made from: model,
spec, packages and flags.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from compile.build.build import Builder, build_artifact, read_source
from compile.build.neuron_builder import NeuronBuilder
from compile.build.progress import JOINT, LineProgress, Say
from compile.build.stages import STATE, read_stage
from compile.plan.fit import check_fits
from compile.plan.memory import footprint, gib
from compile.plan.plan_report import describe
from compile.spec import CompileSpec
from inference.artifact import MANIFEST, NATIVE, read_manifest
from inference.errors import BadArtifact
from inference.model.config import ModelConfig, read_config


def neuron_artifact(
    spec: CompileSpec, checkpoint: Path, cache: Path, *, command: str, say: Say
) -> Path:
    """The directory of a complete artefact for the spec. A build takes long, and a broken one is
    continued.
    """
    source, builder = read_source(checkpoint), _builder_of(spec, checkpoint)
    made_from = {
        "spec": spec.plain(),
        "model": source.model_fingerprint,
        "versions": dict(builder.versions()),
        "flags": dict(builder.flags()),
    }
    directory = (
        cache / hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    )
    if _complete(directory):
        say(f"using the artefact in {directory}")
        return directory
    config = read_config(checkpoint)
    for line in (
        *describe(spec, config, check_fits(config, spec)),
        *cost_of_building(spec, config, cache),
        f"building it in {directory}",
    ):
        say(line)
    build_artifact(spec, source, builder, directory, command=command, progress=LineProgress(say))
    return directory


def _builder_of(spec: CompileSpec, checkpoint: Path) -> Builder:
    if spec.target in NATIVE:
        from compile.build.torch_neuron_builder import TorchNeuronBuilder
        from inference.backends.torch_neuron_sdk import check_native

        versions = check_native(spec.target)
        return TorchNeuronBuilder(spec, checkpoint, spec.vocabulary, versions=versions)
    return NeuronBuilder(spec, checkpoint, spec.vocabulary)


def cost_of_building(spec: CompileSpec, config: ModelConfig, cache: Path) -> Iterator[str]:
    """What a build costs: host memory by counting, time by earlier builds on this machine."""
    rank = footprint(config, spec).weights
    whole, memory = (
        rank * spec.tensor_parallel,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    yield (
        f"host memory: {gib(whole + rank)} at least for dealing out the weights, then "
        f"{gib(2 * rank)} and what the compilers take"
    )
    yield f"  this machine has {gib(memory)}"
    earlier = sorted(_earlier(cache))
    if earlier:
        yield (
            f"time: building took {earlier[0]:.0f} to {earlier[-1]:.0f} s for the "
            f"{len(earlier)} artefacts built here before"
        )
    else:
        yield (
            f"time: not known yet, no artefact was built here before; {len(spec.buckets)} "
            "graphs, and the compiler may take minutes for each"
        )


def _complete(directory: Path) -> bool:
    try:
        return (directory / MANIFEST).is_file() and bool(read_manifest(directory).files)
    except BadArtifact:
        return False


def _earlier(cache: Path) -> Iterator[float]:
    """Seconds of all stages of every complete artefact in the cache."""
    for joint in cache.glob(f"*/{STATE}/{JOINT}.json"):
        try:
            yield sum(read_stage(path).seconds for path in joint.parent.glob("*.json"))
        except BadArtifact:
            continue
