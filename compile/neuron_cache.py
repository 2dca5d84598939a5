"""Finds or builds the artefact of `--device neuron` without --artifact. Before a build it prints
what the build takes.

Artefacts lie under one directory. Each is named by a hash of everything it is made from: model,
spec, packages and flags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from compile.build.build import build_artifact, read_source
from compile.build.progress import BuildProgress, BuildTimes, Say
from compile.build.stages import hash_of
from compile.builders import builder_of
from compile.plan.fit import check_fits
from compile.plan.memory import footprint, gib
from compile.plan.plan_report import describe
from compile.spec import CompileSpec
from inference.artifact import MANIFEST, read_manifest
from inference.errors import BadArtifact
from inference.files import cache_directory
from inference.model.config import ModelConfig, read_config


def neuron_artifact(
    spec: CompileSpec, checkpoint: Path, cache: Path, *, command: str, say: Say
) -> Path:
    """The directory of a complete artefact for the spec. A build takes long, and a broken one is
    continued.
    """
    source, builder = read_source(checkpoint), builder_of(spec, checkpoint)
    made_from = {
        "spec": spec.plain(),
        "model": source.model_fingerprint,
        "versions": dict(builder.versions()),
        "flags": dict(builder.flags()),
    }
    directory = cache / hash_of(made_from)[:16]
    if _complete(directory):
        say(f"using the artefact in {directory}")
        return directory
    config = read_config(checkpoint)
    times = BuildTimes.of(cache_directory("build_times"), spec, source.model_fingerprint)
    for line in (
        *describe(spec, config, check_fits(config, spec)),
        *cost_of_building(spec, config, times),
        f"building it in {directory}",
    ):
        say(line)
    progress = BuildProgress(say, times)
    build_artifact(spec, source, builder, directory, command=command, progress=progress)
    return directory


def cost_of_building(spec: CompileSpec, config: ModelConfig, times: BuildTimes) -> Iterator[str]:
    """Lines on a build's cost: host memory by counting, time by earlier builds on this machine."""
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
    if times.before:
        yield (
            f"time: the {len(times.before)} stages of this model that were built here before took "
            f"{sum(times.before.values()):.0f} s"
        )
    else:
        yield (
            f"time: not known yet, this model was not built here before; {len(spec.buckets)} "
            "graphs, and the compiler may take minutes for each"
        )


def _complete(directory: Path) -> bool:
    try:
        return (directory / MANIFEST).is_file() and bool(read_manifest(directory).files)
    except BadArtifact:
        return False
