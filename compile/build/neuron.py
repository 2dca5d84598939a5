"""Builds a target for trn1, inf2 or trn2 with NxD Core's ModelBuilder (V2): weights divided by
rank, all graphs in one file.

It needs AWS's packages and no device. The graphs keep their caches as state, which is reassigned
out of place. Graphs are told apart by the names and shapes of their inputs. Written against the
documented interface and run through a strict stand-in (tests/fake_neuron.py); not yet run on
hardware.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile.build.neuron_compiler import Toolchain, render
from compile.build.parallel import parallel_config, parallel_layers, parallel_tensors
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.neuron import COPY, COPY_RECORD, PACKAGE, SHARD
from inference.backends.neuron_sdk import sdk_versions
from inference.errors import InvalidRequest
from inference.model.cache import KeysValues, empty_cache
from inference.model.checkpoint import DTYPES, load_decoder
from inference.model.config import ModelConfig, read_config
from inference.model.decoder import Decoder
from inference.model.round_graph import StatefulRoundGraph
from inference.model.sampler import add_in_halves
from inference.model.verify_graph import StatefulGraph, copy_inputs, example_inputs
from inference.whole_file import write_whole

Stateful = StatefulGraph | StatefulRoundGraph
"""The module from which all graphs of a package are made."""

_COMPILERS_AT_ONCE = 4


class NeuronBuilder:
    """A Builder (compile/build/build.py) for Neuron targets."""

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        self.target, self._tools = spec.target, Toolchain(spec)
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary
        self._config = read_config(checkpoint_directory)
        self._dealt = parallel_config(self._config, spec.tensor_parallel)
        self._dtype = DTYPES[spec.dtype]

    def prepare(self, directory: Path) -> list[str]:
        """Write the weights, one file a rank."""
        spec, sdk, named = self._spec, self._tools.sdk, self._weights()
        with self._ranks(), sdk.init_on_device(torch.device("meta")):
            graph = self._graph("meta")
            for rank in range(
                spec.tensor_parallel
            ):  # one at a time: a rank's share is let go before the next is cut
                sdk.shard_checkpoint(
                    checkpoint=dict(named),
                    model=graph,
                    start_rank=rank,
                    end_rank=rank,
                    serialize_path=str(directory / "weights"),
                )
        return [SHARD.format(rank) for rank in range(spec.tensor_parallel)]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Write what the graph will be: the names, shapes and types by which calls find it. All
        graphs are compiled together, by `finish`.
        """
        return [
            self._record(
                directory,
                f"graphs/{bucket.name}.json",
                self._inputs(bucket),
                {"levels": bucket.levels},
            )
        ]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Trace and compile every graph into one package, without weights. With several rows there
        is also a graph that copies a row.
        """
        check_routes(buckets)
        with self._tools.working() as work, self._ranks():
            model = self._compile(buckets, work)
            (directory / PACKAGE).parent.mkdir(parents=True, exist_ok=True)
            model.save(str(directory / PACKAGE), save_weights=False)
        copying = (
            [self._record(directory, COPY_RECORD, copy_inputs(), {})] if self._spec.rows > 1 else []
        )
        return [PACKAGE, *copying]

    def _record(
        self,
        directory: Path,
        name: str,
        inputs: Mapping[str, torch.Tensor],
        more: Mapping[str, Any],
    ) -> str:
        """Write what a graph takes. Returns the file's name."""
        described = {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in inputs.items()
        }
        record = {"inputs": described, **more, "flags": render(self._tools.flags)}
        write_whole(directory / name, json.dumps(record, indent=1) + "\n")
        return name

    def versions(self) -> Mapping[str, str]:
        return sdk_versions()

    def host(self) -> Mapping[str, str]:
        return self._tools.host

    def flags(self) -> Mapping[str, str]:
        return self._tools.flags

    @contextmanager
    def _ranks(self) -> Iterator[None]:
        """The parallel state in which one process lays out the program of all ranks."""
        ranks = self._spec.tensor_parallel
        with self._tools.sdk.parallel_state(
            world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=self._tools.logical
        ):
            yield

    def _weights(self) -> dict[str, Tensor]:
        """All weights, not yet divided, by their names in the graph."""
        return self._weights_of(self._checkpoint, self._config, "decoder")

    def _weights_of(self, checkpoint: Path, config: ModelConfig, name: str) -> dict[str, Tensor]:
        positions, device = self._spec.sequence_length, torch.device("cpu")
        whole = load_decoder(
            checkpoint,
            positions=positions,
            vocabulary=self._vocabulary,
            dtype=self._dtype,
            device=device,
        )
        tensors = parallel_tensors(whole.named_parameters(), config, self._spec.tensor_parallel)
        tensors |= {"cos": whole.cos, "sin": whole.sin}
        return {f"{name}.{key}": tensor.detach() for key, tensor in tensors.items()}

    def _inputs(self, bucket: Bucket) -> dict[str, Tensor]:
        """Inputs of an idle call of the bucket's graph."""
        return example_inputs(bucket)

    def _graph(self, device: str) -> Stateful:
        """One rank's module, its weights not filled in."""
        return (
            StatefulGraph(
                self._rank_decoder(self._dealt),
                self._rank_cache(self._dealt, device),
                1,
                add_in_halves,
            )
            .requires_grad_(False)
            .eval()
        )

    def _rank_decoder(self, dealt: ModelConfig) -> Decoder:
        decoder = Decoder(
            dealt,
            self._spec.sequence_length,
            self._vocabulary,
            parallel_layers(self._tools.sdk, self._dtype),
        )
        for parameter in decoder.parameters():
            parameter.data = parameter.data.to(self._dtype)
        for name in (
            "cos",
            "sin",
        ):  # constants that travel with the weights: only buffers that change are state
            decoder.register_buffer(name, decoder.get_buffer(name), persistent=True)
        return decoder

    def _rank_cache(self, dealt: ModelConfig, device: str) -> KeysValues:
        own = replace(dealt, kv_heads=dealt.kv_heads // self._spec.tensor_parallel)
        return empty_cache(own, self._spec.rows, self._spec.capacity, self._dtype, device)

    @torch.no_grad()
    def _compile(self, buckets: Sequence[Bucket], work: Path) -> Any:
        """An NxDModel of all graphs, which share one module, one set of weights and one state."""
        graph = self._graph("cpu")
        builder = self._tools.sdk.model_builder(graph)
        for bucket in buckets:
            graph.levels = bucket.levels
            builder.trace(kwargs=self._inputs(bucket), tag=bucket.name)
        names = [bucket.name for bucket in buckets]
        if self._spec.rows > 1:
            builder.trace(kwargs=copy_inputs(), tag=COPY)
            names.append(COPY)
        arguments = dict.fromkeys(names, render(self._tools.flags))
        workers = max(1, min(_COMPILERS_AT_ONCE, (os.cpu_count() or 1) // 2))
        return builder.compile(
            compiler_workdir=str(work), compiler_args=arguments, max_workers=workers
        )


def check_routes(buckets: Sequence[Bucket]) -> None:
    """Check that no two graphs take inputs of equal names and shapes. A call could not tell which
    of them is meant.
    """
    routes: dict[tuple[Any, ...], str] = {}
    for bucket in buckets:
        route = (
            type(bucket),
            bucket.rows,
            bucket.nodes,
            bucket.slots,
            bucket.picks,
            bucket.sampled,
        )
        if route in routes:
            raise InvalidRequest(
                f"graphs {routes[route]} and {bucket.name} take the same inputs: leave one out"
            )
        routes[route] = bucket.name
