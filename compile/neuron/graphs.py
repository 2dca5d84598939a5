"""Traces and compiles the Neuron graphs of one module, each separately and with a cache, and
combines them in a package.

A graph is traced in every build, which takes seconds, but only compiled if it is not in the cache.
Weights are stored in the best layout for one graph (the priority graph). All other graphs are
compiled for that layout, and loading converts the weights to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compile.neuron.compiler import NeffCache, Toolchain, once_more, render, unit_key
from inference.backends.neuron.sdk import BuildUnits, load_build_units

LOG = "log-neuron-cc.txt"
"""The compiler's log file of a graph."""

_NEFF, _WRAPPED, _HLO, _METANEFF = "graph.neff", "wrapped_neff.hlo", "graph.hlo", "metaneff.pb"


@dataclass(frozen=True)
class GraphCall:
    """A graph to compile, given by an idle call of the module."""

    name: str
    inputs: Mapping[str, Tensor]
    flags: Mapping[str, str]  # of the compiler


@dataclass(frozen=True)
class CompiledCall:
    """A compiled graph."""

    trace: Any  # TraceArtifacts
    artifacts: Any  # CompilationArtifacts
    log: Path | None  # of the compiler


@dataclass(frozen=True)
class _Layout:
    """The layout of weights for which all graphs are compiled."""

    graph: CompiledCall  # the priority graph
    transformer: Any  # LayoutTransformerArtifacts; None if the weights stay unchanged


class NeuronGraphs:
    """The graphs of one module. `compiled` may be called from several threads: only one traces at a
    time, but compilers run in parallel.

    ranks: the parallel state in which a module is created and traced. Layers belong to the state in
    which they were created, so each trace has its own module.
    priority: the graph whose layout of weights all graphs use; None to leave weights unchanged
    """

    def __init__(
        self,
        tools: Toolchain,
        cache: NeffCache,
        make_module: Callable[[], nn.Module],
        ranks: Callable[[], AbstractContextManager[None]],
        compiler: str,
        priority: GraphCall | None,
    ) -> None:
        self._tools, self._cache, self._make, self._ranks = tools, cache, make_module, ranks
        self._compiler, self._priority = compiler, priority
        self._tracing, self._laying_out = threading.RLock(), threading.Lock()
        self._units: BuildUnits | None = None
        self._traces: dict[str, Any] = {}
        self._layout: _Layout | None = None

    def compiled(self, call: GraphCall) -> CompiledCall:
        """Return the compiled graph, from the cache if possible."""
        layout = self._laid_out()
        if layout is None:
            return self._compiled_for(call, self._traced(call, None))
        if self._priority is not None and call.name == self._priority.name:
            return layout.graph
        return self._compiled_for(call, self._traced(call, layout))

    def package(self, calls: Iterable[GraphCall], ranks: int) -> Any:
        """Return an NxDModel of the graphs, which share one set of weights and one state."""
        layout = self._laid_out()
        model = self._tools.sdk.nxd_model(
            world_size=ranks, layout_transformer=layout.transformer if layout else None
        )
        for call in calls:
            graph = self.compiled(call)
            model.add(
                key=call.name, trace_artifacts=graph.trace, compilation_artifacts=graph.artifacts
            )
        return model

    def _sdk(self) -> BuildUnits:
        """Return the SDK's functions; set the platform before importing them."""
        with self._tracing:
            if self._units is None:
                _ = self._tools.sdk
                self._units = load_build_units()
            return self._units

    def _traced(self, call: GraphCall, layout: _Layout | None) -> Any:
        """Return the graph's TraceArtifacts for weights in this layout. Traces it only once."""
        with self._tracing:
            if call.name not in self._traces:
                units = self._sdk()
                with self._ranks(), torch.no_grad():
                    trace = units.trace(model=self._make(), kwargs=dict(call.inputs))
                # a graph that reads no weights (copy_rows) has no layout
                if layout is not None and trace.weight_name_to_idx:
                    units.apply_layout_transformation(
                        trace_artifacts=trace,
                        priority_model_trace_artifacts=layout.graph.trace,
                        wlo_artifacts=layout.graph.artifacts,
                        key=call.name,
                    )
                self._traces[call.name] = trace
            return self._traces[call.name]

    def _compiled_for(self, call: GraphCall, trace: Any) -> CompiledCall:
        flags = render(call.flags)

        def make(work: Path) -> dict[str, Path]:
            compiled = self._sdk().compile(
                hlo_module=trace.hlo,
                metaneff=trace.metaneff,
                compiler_workdir=str(work),
                compiler_args=flags,
                key=call.name,
            )
            return {_NEFF: Path(compiled.neff_filepath)}

        unit = self._unit(unit_key("graph", trace.hlo, flags, self._compiler), make)
        artifacts = self._sdk().compilation_artifacts(neff_filepath=str(unit / _NEFF))
        return CompiledCall(trace, artifacts, _log_of(unit))

    def _laid_out(self) -> _Layout | None:
        """Return the layout of the weights, determined when the first graph is compiled."""
        if self._priority is None:
            return None
        with self._laying_out:
            if self._layout is None:
                self._layout = self._lay_out(self._priority)
            return self._layout

    def _lay_out(self, call: GraphCall) -> _Layout:
        trace, units, flags = self._traced(call, None), self._sdk(), render(call.flags)
        units.mark_weights_for_wlo(
            trace_artifacts=trace, weights_to_skip_layout_optimization=trace.weight_names_to_skip
        )

        def make(work: Path) -> dict[str, Path]:
            compiled = units.compile_wlo(
                hlo_module=trace.hlo,
                metaneff=trace.metaneff,
                compiler_workdir=str(work),
                compiler_args=flags,
                key=call.name,
            )
            files = {_NEFF: Path(compiled.neff_filepath)}
            if compiled.wrapped_neff_hlo_filepath is not None:
                files[_WRAPPED] = Path(compiled.wrapped_neff_hlo_filepath)
            return files

        unit = self._unit(unit_key("layout", trace.hlo, flags, self._compiler), make)
        wrapped = unit / _WRAPPED
        artifacts = units.wlo_artifacts(
            neff_filepath=str(unit / _NEFF),
            wrapped_neff_hlo_filepath=str(wrapped) if wrapped.is_file() else None,
        )
        graph = CompiledCall(trace, artifacts, _log_of(unit))
        return _Layout(graph, self._transformer(call, graph))

    def _transformer(self, call: GraphCall, graph: CompiledCall) -> Any:
        """Return the program that converts weights to the common layout; None if not needed."""
        if graph.artifacts.wrapped_neff_hlo_filepath is None:
            return None
        units = self._sdk()

        def make(work: Path) -> dict[str, Path]:
            compiled = units.compile_layout_transformer(
                wlo_artifacts=graph.artifacts,
                priority_model_weight_name_to_idx=graph.trace.weight_name_to_idx,
                compiler_workdir=str(work),
                logical_nc_config=self._tools.logical,
            )
            paths = (compiled.hlo_filepath, compiled.neff_filepath, compiled.metaneff_filepath)
            return dict(zip((_HLO, _NEFF, _METANEFF), map(Path, paths), strict=True))

        key = unit_key("transformer", graph.trace.hlo, render(call.flags), self._compiler)
        unit = self._unit(key, make)
        return units.layout_transformer_artifacts(
            hlo_filepath=str(unit / _HLO),
            neff_filepath=str(unit / _NEFF),
            metaneff_filepath=str(unit / _METANEFF),
        )

    def _unit(self, key: str, make: Callable[[Path], dict[str, Path]]) -> Path:
        """Return the directory of a unit; compile it if it is not in the cache. A compiler that
        dies without a reason is run once more.
        """
        cached = self._cache.find(key)
        if cached is not None:
            return cached
        return once_more(lambda: self._made(key, make))

    def _made(self, key: str, make: Callable[[Path], dict[str, Path]]) -> Path:
        with self._tools.working() as work:
            files = make(work)
            logs = sorted(work.rglob(LOG))
            return self._cache.keep(key, files | ({LOG: logs[-1]} if logs else {}))


def _log_of(unit: Path) -> Path | None:
    return unit / LOG if (unit / LOG).is_file() else None
