"""One graph for one NeuronCore through torch_neuronx.trace: the caches are aliased from input to output instead of reassigned.

For small models and for hosts where NxD Core is unwanted. A trace has its own state, so an artefact made this way has exactly one
graph, which prompts go through as well. Not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from compile.neuron import aim, compiler_flags, render
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.neuron_sdk import Sdk, has_device, load_sdk, logical_cores, sdk_versions
from inference.choice import add_in_halves
from inference.errors import BadArtifact, InvalidRequest
from inference.model.checkpoint import DTYPES, load_decoder
from inference.model.graph import StatefulGraph, example_inputs

TRACE = "graphs/traced.pt"


class AliasedGraph(StatefulGraph):
    """Returns chosen [B, P] and the new caches, which the runtime puts in the place of the old."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        rows: Tensor,
        slots: Tensor,
        positions: Tensor,
        context_mask: Tensor,
        tree_mask: Tensor,
        pick: Tensor,
        temperature: Tensor | None = None,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        before = self.keys, self.values
        chosen = super().forward(tokens, rows, slots, positions, context_mask, tree_mask, pick, temperature, top_k, top_p, seed)
        after = self.keys, self.values
        self.keys, self.values = before
        return chosen, *after


class TraceBuilder:
    """The Builder of a spec with one graph and one core; see compile.build."""

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        if len(spec.buckets) != 1 or spec.tensor_parallel != 1:
            raise InvalidRequest(f"torch_neuronx.trace makes one graph for one core, asked for are {len(spec.buckets)} and {spec.tensor_parallel}")
        self.target = spec.target
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary
        self._logical = logical_cores(spec.target)
        self._flags = compiler_flags(spec, self._logical)

    def prepare(self, directory: Path) -> list[str]:
        """Nothing: the weights are saved with the trace, beside the program and not in it."""
        return []

    @torch.no_grad()
    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        graph, sdk = self._graph(bucket), self._sdk
        try:
            traced = sdk.torch_neuronx.trace(
                graph,
                tuple(example_inputs(bucket).values()),
                input_output_aliases={graph.keys: 1, graph.values: 2},
                compiler_args=render(self._flags),
                inline_weights_to_neff=False,
                cpu_backend=not has_device(),
            )
        except RuntimeError as error:
            raise BadArtifact(f"the Neuron compiler failed on {bucket.name}: {error}") from error
        (directory / TRACE).parent.mkdir(parents=True, exist_ok=True)
        torch.jit.save(traced, str(directory / TRACE))
        return [TRACE]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        return []

    def versions(self) -> Mapping[str, str]:
        return sdk_versions()

    def host(self) -> Mapping[str, str]:
        return {"family": self.target, "logical_cores": str(self._logical), "interface": "trace"}

    def flags(self) -> Mapping[str, str]:
        return self._flags

    @cached_property
    def _sdk(self) -> Sdk:
        sdk_versions()
        aim(self.target)
        return load_sdk()

    def _graph(self, bucket: Bucket) -> AliasedGraph:
        spec, dtype = self._spec, DTYPES[self._spec.dtype]
        length, cpu = spec.sequence_length, torch.device("cpu")
        decoder = load_decoder(self._checkpoint, positions=length, vocabulary=self._vocabulary, dtype=dtype, device=cpu)
        config = decoder.config
        keys, values = (torch.zeros(config.layers, spec.rows, config.kv_heads, spec.cache_slots, config.head_dim, dtype=dtype) for _ in range(2))
        return AliasedGraph(decoder, keys, values, bucket.levels, add_in_halves).requires_grad_(False).eval()
