"""Traces and compiles the Neuron graphs of one module, each by itself and through a cache, and puts
them together to a package.

A graph is traced in every build, which takes seconds, and compiled only where the cache lacks it.
Weights are laid out as one graph reads them best (the priority graph). All other graphs are
compiled for that layout, and loading brings the weights into it.
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

from compile.neuron.compiler import Toolchain, once_more, render
from compile.neuron.neff_cache import NeffCache, unit_key
from inference.backends.neuron.sdk import BuildUnits, load_build_units

LOG = "log-neuron-cc.txt"
"""The compiler's log of a graph, as it names it."""

_NEFF, _WRAPPED, _HLO, _METANEFF = "graph.neff", "wrapped_neff.hlo", "graph.hlo", "metaneff.pb"


@dataclass(frozen=True)
class GraphCall:
    """A graph to compile, by an idle call of the module."""

    name: str
    inputs: Mapping[str, Tensor]
    flags: Mapping[str, str]  # the compiler's


@dataclass(frozen=True)
class CompiledCall:
    """A compiled graph."""

    trace: Any  # TraceArtifacts
    artifacts: Any  # CompilationArtifacts
    log: Path | None  # the compiler's


@dataclass(frozen=True)
class _Layout:
    """The layout of weights that all graphs are compiled for."""

    graph: CompiledCall  # the one that reads them best so
    transformer: Any  # LayoutTransformerArtifacts; None if weights are best as they are


class NeuronGraphs:
    """The graphs of one module. `compiled` may be called from several threads: tracing is done by
    one at a time, compilers run beside each other.

    ranks: the parallel state in which a module is made and traced. Layers belong to the state that
    they were made in, so each trace has a module of its own.
    priority: the graph whose layout of weights all take; None: weights stay as they are
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
        """The graph, from the cache where it was compiled before."""
        layout = self._laid_out()
        if layout is None:
            return self._compiled_for(call, self._traced(call, None))
        if self._priority is not None and call.name == self._priority.name:
            return layout.graph
        return self._compiled_for(call, self._traced(call, layout))

    def package(self, calls: Iterable[GraphCall], ranks: int) -> Any:
        """An NxDModel of the graphs, which share one set of weights and one state."""
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
        """The SDK's functions; the platform is set before they are imported."""
        with self._tracing:
            if self._units is None:
                _ = self._tools.sdk
                self._units = load_build_units()
            return self._units

    def _traced(self, call: GraphCall, layout: _Layout | None) -> Any:
        """The graph's TraceArtifacts, for weights in the given layout. Traced once."""
        with self._tracing:
            if call.name not in self._traces:
                units = self._sdk()
                with self._ranks(), torch.no_grad():
                    trace = units.trace(model=self._make(), kwargs=dict(call.inputs))
                # a graph that reads no weights (copy_rows) has none to lay out
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
            made = self._sdk().compile(
                hlo_module=trace.hlo,
                metaneff=trace.metaneff,
                compiler_workdir=str(work),
                compiler_args=flags,
                key=call.name,
            )
            return {_NEFF: Path(made.neff_filepath)}

        unit = self._unit(unit_key("graph", trace.hlo, flags, self._compiler), make)
        artifacts = self._sdk().compilation_artifacts(neff_filepath=str(unit / _NEFF))
        return CompiledCall(trace, artifacts, _log_of(unit))

    def _laid_out(self) -> _Layout | None:
        """The layout of the weights, found when the first graph is compiled."""
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
            made = units.compile_wlo(
                hlo_module=trace.hlo,
                metaneff=trace.metaneff,
                compiler_workdir=str(work),
                compiler_args=flags,
                key=call.name,
            )
            files = {_NEFF: Path(made.neff_filepath)}
            if made.wrapped_neff_hlo_filepath is not None:
                files[_WRAPPED] = Path(made.wrapped_neff_hlo_filepath)
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
        """The program that brings weights into the priority graph's layout; None if they are."""
        if graph.artifacts.wrapped_neff_hlo_filepath is None:
            return None
        units = self._sdk()

        def make(work: Path) -> dict[str, Path]:
            made = units.compile_layout_transformer(
                wlo_artifacts=graph.artifacts,
                priority_model_weight_name_to_idx=graph.trace.weight_name_to_idx,
                compiler_workdir=str(work),
                logical_nc_config=self._tools.logical,
            )
            paths = (made.hlo_filepath, made.neff_filepath, made.metaneff_filepath)
            return dict(zip((_HLO, _NEFF, _METANEFF), map(Path, paths), strict=True))

        key = unit_key("transformer", graph.trace.hlo, render(call.flags), self._compiler)
        unit = self._unit(key, make)
        return units.layout_transformer_artifacts(
            hlo_filepath=str(unit / _HLO),
            neff_filepath=str(unit / _NEFF),
            metaneff_filepath=str(unit / _METANEFF),
        )

    def _unit(self, key: str, make: Callable[[Path], dict[str, Path]]) -> Path:
        """The directory of a unit, compiled if the cache lacks it. A compiler that dies without a
        reason is run once more.
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
