"""Builds a target for trn1 or inf2 with NxD Core: weights divided among ranks, graphs compiled
separately, all graphs in one file.

The build needs AWS's packages but no device. The graphs have their caches as state, which is
reassigned out of place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from compile.build.build import MadeWith, load_whole
from compile.neuron.compiler import NeffCache, Toolchain, render
from compile.neuron.graphs import GraphCall, NeuronGraphs
from compile.parallel import layers_of, parallel_tensors, rank_module, write_record
from compile.plan.memory import compilers_at_once
from compile.spec import CompileSpec
from inference.backends.neuron.model import PACKAGE, SHARD, calls_between
from inference.backends.neuron.sdk import sdk_versions
from inference.files.artifact import Bucket
from inference.files.writing import cache_directory
from inference.model.checkpoints.config import read_config
from inference.model.graphs.round_graph import idle_inputs

_OPTIMISATION = ("-O", "--optlevel")


class NeuronBuilder:
    """A Builder (compile/build/build.py) for trn1 and inf2.

    draft: the checkpoint of the draft in the graphs, if the spec has one
    cache: compiled graphs of earlier builds (default: in the user's cache directory)
    workers: number of compilers at once (default: half the processors, if there is enough memory)
    """

    def __init__(
        self,
        spec: CompileSpec,
        checkpoint: Path,
        draft: Path | None = None,
        *,
        cache: NeffCache | None = None,
        workers: int | None = None,
    ) -> None:
        self._tools, self._spec = Toolchain(spec), spec
        self._checkpoints = {"decoder": checkpoint} | ({"draft": draft} if draft else {})
        self._configs = {name: read_config(path) for name, path in self._checkpoints.items()}
        self._cache = cache or NeffCache(cache_directory("neuron_graphs"))
        self.workers = workers or compilers_at_once(spec.target)

    def prepare(self, directory: Path) -> list[str]:
        """Write the weights, one file per rank."""
        spec, sdk, weights = self._spec, self._tools.sdk, self._weights()
        with self._ranks(), sdk.init_on_device(torch.device("meta")):
            graph = self._module("meta")
            for rank in range(spec.tensor_parallel):  # one at a time, to free each rank's share
                sdk.shard_checkpoint(
                    checkpoint=dict(weights),
                    model=graph,
                    start_rank=rank,
                    end_rank=rank,
                    serialize_path=str(directory / "weights"),
                )
        return [SHARD.format(rank) for rank in range(spec.tensor_parallel)]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Compile one graph, unless an earlier build did. Writes its inputs and flags, and the
        compiler's log; the graph itself stays in the cache for `finish`.
        """
        call = self._call(bucket)
        graph = self._graphs.compiled(call)
        files = [_record(directory, call)]
        if graph.log is not None:
            files.append(f"graphs/{bucket.name}.log.txt")
            shutil.copyfile(graph.log, directory / files[-1])
        return files

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Combine all graphs in one package, without weights. With several rows, it includes a
        graph that copies a row, and with sampling one that computes noise.
        """
        calls = [*(self._call(bucket) for bucket in buckets), *self._between]
        records = [_record(directory, call) for call in self._between]
        model = self._graphs.package(calls, self._spec.tensor_parallel)
        (directory / PACKAGE).parent.mkdir(parents=True, exist_ok=True)
        model.save(str(directory / PACKAGE), save_weights=False)
        return [PACKAGE, *records]

    @cached_property
    def _graphs(self) -> NeuronGraphs:
        hot = hot_graph(self._spec)
        return NeuronGraphs(
            self._tools,
            self._cache,
            lambda: self._module("cpu"),
            self._ranks,
            sdk_versions()["neuronx-cc"],
            None if hot is None else self._call(hot),
        )

    @property
    def _between(self) -> list[GraphCall]:
        calls = calls_between(self._spec).items()
        return [GraphCall(name, inputs, self._tools.flags) for name, inputs in calls]

    def _call(self, bucket: Bucket) -> GraphCall:
        flags = graph_flags(self._tools.flags, self._spec, bucket)
        return GraphCall(bucket.name, idle_inputs(bucket), flags)

    def made_with(self) -> MadeWith:
        return MadeWith(sdk_versions(), self._tools.host, self._tools.flags)

    @contextmanager
    def _ranks(self) -> Iterator[None]:
        """Create the parallel state in which one process traces the program of all ranks."""
        ranks = self._spec.tensor_parallel
        with self._tools.sdk.parallel_state(
            world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=self._tools.logical
        ):
            yield

    def _weights(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": tensor.detach()
            for name in self._checkpoints
            for key, tensor in self._weights_of(name).items()
        }

    def _weights_of(self, name: str) -> dict[str, Tensor]:
        spec = self._spec
        decoder = load_whole(spec, self._checkpoints[name])
        tensors = parallel_tensors(
            decoder.named_parameters(), self._configs[name], spec.tensor_parallel, spec.vocabulary
        )
        return tensors | {"cos": decoder.cos, "sin": decoder.sin}

    def _module(self, device: str) -> nn.Module:
        layers, configs = layers_of(self._tools.sdk, self._spec), self._configs
        return rank_module(self._spec, configs["decoder"], configs.get("draft"), layers, device)


def _record(directory: Path, call: GraphCall) -> str:
    return write_record(directory, call.name, call.inputs, flags=render(call.flags))


def graph_flags(flags: Mapping[str, str], spec: CompileSpec, bucket: Bucket) -> dict[str, str]:
    """Return the compiler's flags for one graph. Prompt graphs are compiled at -O1 unless the spec
    has another level: they are large, and the compiler's further passes would take long.
    """
    stated = any(flag.startswith(_OPTIMISATION) for flag in spec.compiler_flags)
    if stated or bucket.everywhere:
        return dict(flags)
    return {flag: value for flag, value in flags.items() if not flag.startswith("-O")} | {"-O1": ""}


def hot_graph(spec: CompileSpec) -> Bucket | None:
    """Return the graph that determines the layout of the weights: the largest tree of all rows over
    the whole cache, sampled if possible. A plan with these rows always includes it, so adding a
    graph later does not change the layout.

    None if there is a draft, whose weights this graph does not read: the layout is then unchanged.
    """
    if spec.fused is not None:
        return None
    trees = [bucket for bucket in spec.buckets if bucket.everywhere]
    return max(
        trees, key=lambda tree: (tree.nodes, tree.rows, tree.slots, tree.sampled, -tree.words)
    )
