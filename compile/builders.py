"""Chooses the builder of a spec. Each is imported when it is chosen, because each needs its own
compiler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compile.build.free_memory import processors, workers_within
from compile.compile_options import CompileOptions
from compile.plan.build_memory import worker_memory
from compile.plan.draft import draft_directory
from compile.plan.memory import footprint
from compile.request import BuildCheckpoint
from compile.spec import CompileSpec
from compile.store import open_store
from inference.artifact import NATIVE
from inference.cache_directory import cache_directory
from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from compile.build.build import Builder


def builder_of(options: CompileOptions, spec: CompileSpec, checkpoint: BuildCheckpoint) -> Builder:
    """The builder for the spec. For CPU it builds graphs in several processes where they fit."""
    if spec.target in NATIVE:
        return _native_builder(options, spec, checkpoint)
    if spec.target != "cpu":
        return _neuron_builder(options, spec, checkpoint)
    made_of = (spec, checkpoint.directory, checkpoint.vocabulary)
    from compile.build.graph_processes import InProcesses

    quiet = not options.verbose
    weights = footprint(checkpoint.config, spec).weights
    need = worker_memory(spec.target, weights)
    workers = options.workers or workers_within(processors(), need)
    workers = min(workers, len(spec.graphs))
    if spec.fused is None:
        from compile.build.cpu import CpuBuilder

        return InProcesses(partial(CpuBuilder, *made_of), workers, quiet=quiet)
    from compile.build.cpu_fused import FusedCpuBuilder

    draft = draft_directory(options)
    return InProcesses(partial(FusedCpuBuilder, *made_of, draft), workers, quiet=quiet)


def _native_builder(
    options: CompileOptions, spec: CompileSpec, checkpoint: BuildCheckpoint
) -> Builder:
    from compile.build.torch_neuron_builder import TorchNeuronBuilder
    from inference.backends.torch_neuron_sdk import check_native

    for flag in ("graph_store", "workers"):
        if getattr(options, flag) is not None:
            raise InvalidRequest(
                f"--{flag} is for other targets: {spec.target} compiles graph by graph, "
                "and an artefact holds what was compiled"
            )
    versions = check_native(spec.target)
    return TorchNeuronBuilder(spec, checkpoint.directory, checkpoint.vocabulary, versions=versions)


def _neuron_builder(
    options: CompileOptions, spec: CompileSpec, checkpoint: BuildCheckpoint
) -> Builder:
    from compile.build.neff_cache import NeffCache

    store = None if options.graph_store is None else open_store(options.graph_store)
    cache = NeffCache(cache_directory("neuron_graphs"), store)
    made_of = (spec, checkpoint.directory, checkpoint.vocabulary)
    if spec.fused is None:
        from compile.build.neuron_builder import NeuronBuilder

        return NeuronBuilder(*made_of, cache=cache, workers=options.workers)
    from compile.build.neuron_fused_builder import FusedNeuronBuilder

    draft = draft_directory(options)
    return FusedNeuronBuilder(*made_of, draft, cache=cache, workers=options.workers)
