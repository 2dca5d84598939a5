"""Chooses the builder of a spec. Each is imported when it is chosen, because each needs its own
compiler.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compile.plan.build_memory import processors, worker_memory, workers_within
from compile.plan.memory import footprint
from compile.spec import CompileSpec
from compile.store import open_store
from inference.artifact import NATIVE
from inference.errors import InvalidRequest
from inference.files import cache_directory
from inference.model.config import read_config

if TYPE_CHECKING:
    from compile.build.build import Builder


def builder_of(
    spec: CompileSpec,
    checkpoint: Path,
    draft: Path | None = None,
    *,
    workers: int | None = None,
    graph_store: str | None = None,
    quiet: bool = True,
) -> Builder:
    """The builder for the spec. For CPU it builds graphs in several processes where they fit.

    draft: the checkpoint of the draft in the graphs, where the spec has one
    workers: graphs that are compiled at once (default: what cores and free memory allow)
    graph_store: where machines share compiled graphs, for trn1 and inf2
    quiet: whether processes keep their libraries' notes to themselves
    """
    if spec.target in NATIVE:
        for flag, given in (("graph_store", graph_store), ("workers", workers)):
            if given is not None:
                raise InvalidRequest(
                    f"--{flag} is for other targets: {spec.target} compiles graph by graph, "
                    "and an artefact holds what was compiled"
                )
        from compile.build.torch_neuron_builder import TorchNeuronBuilder
        from inference.backends.torch_neuron_sdk import check_native

        return TorchNeuronBuilder(spec, checkpoint, versions=check_native(spec.target))
    if spec.target == "cpu":
        return _cpu_builder(spec, checkpoint, draft, workers, quiet)
    from compile.build.neff_cache import NeffCache
    from compile.build.neuron_builder import NeuronBuilder

    store = None if graph_store is None else open_store(graph_store)
    cache = NeffCache(cache_directory("neuron_graphs"), store)
    return NeuronBuilder(spec, checkpoint, draft, cache=cache, workers=workers)


def _cpu_builder(
    spec: CompileSpec, checkpoint: Path, draft: Path | None, workers: int | None, quiet: bool
) -> Builder:
    from compile.build.cpu import CpuBuilder
    from compile.build.graph_processes import InProcesses

    weights = footprint(read_config(checkpoint), spec).weights
    most = workers or workers_within(processors(), worker_memory(spec.target, weights))
    make = partial(CpuBuilder, spec, checkpoint, draft)
    return InProcesses(make, min(most, len(spec.graphs)), quiet=quiet)
