"""One graph for one NeuronCore through torch_neuronx.trace: the caches are aliased from output to
input instead of reassigned.

For models that fit one core. A trace has its own weights and state, so an artefact made this way
has exactly one graph, which prompts go through as well. Written against the documented interface;
not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from compile.neuron import Toolchain, render
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.compiled import empty_caches
from inference.backends.neuron import TRACE
from inference.backends.neuron_sdk import has_device, sdk_versions
from inference.errors import InvalidRequest
from inference.model.checkpoint import DTYPES, load_decoder
from inference.model.sampler import add_in_halves
from inference.model.verify_graph import AliasedGraph, example_inputs


class TraceBuilder:
    """The Builder of a spec with one graph and one core; see compile.build."""

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        if len(spec.buckets) != 1 or spec.tensor_parallel != 1:
            asked = f"{len(spec.buckets)} graphs for {spec.tensor_parallel} cores"
            raise InvalidRequest(
                f"torch_neuronx.trace makes one graph for one core, asked for are {asked}: leave "
                "out --trace"
            )
        self.target, self._tools = spec.target, Toolchain(spec, "trace")
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary

    def prepare(self, directory: Path) -> list[str]:
        """Nothing: the weights are saved with the trace, beside the program and not in it."""
        return []

    @torch.no_grad()
    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Trace, compile and save the graph with its weights; raises BadArtifact with the
        compiler's words.
        """
        graph, sdk = self._graph(bucket), self._tools.sdk
        with self._tools.working() as work:
            traced = sdk.torch_neuronx.trace(
                graph,
                tuple(example_inputs(bucket).values()),
                input_output_aliases={graph.keys: 1, graph.values: 2},
                compiler_workdir=str(work),
                compiler_args=render(self._tools.flags),
                inline_weights_to_neff=False,
                cpu_backend=not has_device(),
            )
            (directory / TRACE).parent.mkdir(parents=True, exist_ok=True)
            torch.jit.save(traced, str(directory / TRACE))
        return [TRACE]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        return []

    def versions(self) -> Mapping[str, str]:
        return sdk_versions()

    def host(self) -> Mapping[str, str]:
        return self._tools.host

    def flags(self) -> Mapping[str, str]:
        return self._tools.flags

    def _graph(self, bucket: Bucket) -> AliasedGraph:
        spec, dtype = self._spec, DTYPES[self._spec.dtype]
        length, cpu = spec.sequence_length, torch.device("cpu")
        decoder = load_decoder(
            self._checkpoint, positions=length, vocabulary=self._vocabulary, dtype=dtype, device=cpu
        )
        caches = empty_caches(decoder.config, spec.rows, spec.capacity, dtype)
        return (
            AliasedGraph(decoder, *caches, bucket.levels, add_in_halves)
            .requires_grad_(False)
            .eval()
        )
