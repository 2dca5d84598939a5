"""A target compiled for this machine's CPU: a Model that runs the packages of an artefact, which
are machine code. A batch is padded to the cheapest graph that fits, or split if no graph fits.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.graphs.graph_calls import (
    check_sampled,
    cost,
    fits,
    holds,
    inputs_of,
    joined,
    picked,
    picking,
    unstacked,
)
from inference.errors import BadArtifact, InvalidRequest, LimitExceeded
from inference.files.artifact import Bucket, Manifest, check_files, read_manifest
from inference.model.cache import (
    NOTHING,
    FeatureForm,
    FeatureStore,
    KeysValues,
    cache_names,
    copy_states,
    empty_cache,
    write_slots,
)
from inference.model.checkpoints.config import ModelConfig, check_sizes, parse_config
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray

WEIGHTS = "weights/model.safetensors"
REBUILD = "build it again here with outrider compile --target cpu"
_INSTRUCTIONS = ("avx2", "avx512", "avx512_bf16", "vnni", "amx_tile")  # packages may contain them

AnyBucket = TypeVar("AnyBucket", bound=Bucket)

Graph = Callable[..., tuple[Tensor, ...]]
"""A function that takes inputs by name and returns chosen tokens [B, P], new keys and values, each
[layers, B, T, width], and any features [B, T, width]. For the outputs of a round, see fused.py.
"""


class CompiledModel:
    """Compiled graphs, one for each bucket, over shared KV caches. Implements FeatureModel.

    graphs: graphs by bucket, cheapest first
    returned: form of the features that the graphs return
    """

    branches = True

    def __init__(
        self,
        graphs: Mapping[Bucket, Graph],
        cache: KeysValues,
        returned: FeatureForm = NOTHING,
    ) -> None:
        self._returned = returned
        self._kept: FeatureStore | None = None
        self.cache, first = cache, cache.keys[0]
        self.rows, self.capacity = len(first), first.shape[1] - 1
        self.max_nodes = max(bucket.nodes for bucket in graphs)
        self.masks = any(bucket.masked for bucket in graphs)
        self.dtype, self.device = first.dtype, first.device
        self.graphs = dict(sorted(graphs.items(), key=lambda pair: cost(pair[0])))

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        check_rows(segments)
        bucket = next((bucket for bucket in self.graphs if holds(bucket, segments)), None)
        if bucket is not None:
            return self._call(bucket, segments)
        check_sampled(self.graphs, segments)
        if len(segments) == 1:
            return [self._in_parts(segments[0])]
        return self._in_turn(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Raise InvalidRequest: a compiled target cannot rank."""
        raise InvalidRequest(
            "this artefact is a target's: it chooses tokens and cannot draft; draft with a model "
            "directory"
        )

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the shape of the cheapest graph that fits. If `choose` would split the rows into
        several calls, return the sum of their rows, so that such batches are timed separately.
        """
        wide = [bucket for bucket in self.graphs if bucket.nodes >= nodes]
        if not wide:
            return rows, nodes
        bucket = next((bucket for bucket in wide if bucket.rows >= rows), None)
        if bucket is not None:
            return bucket.rows, bucket.nodes
        largest = max(wide, key=lambda bucket: bucket.rows)
        rest = self.padded(rows - largest.rows, nodes)
        return largest.rows + rest[0], max(largest.nodes, rest[1])

    def keep_features(self, layers: Sequence[int]) -> None:
        """See FeatureModel. The graphs always return features; store them in host memory."""
        slots, host_device = self.capacity + 1, torch.device("cpu")
        self._kept = FeatureStore(layers, self._returned, self.rows, slots, self.dtype, host_device)

    def features(self, row: int, slots: IntArray) -> Tensor:  # [n, feature layers * hidden]
        assert self._kept is not None, "keep_features() comes before"
        return self._kept.read(row, slots)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._copy_cache(source, target, slots)
        if self._kept is not None:
            self._kept.copy(source, target, slots)

    @property
    def by_slot(self) -> tuple[Tensor, ...]:
        """The caches, each [rows, slots, width]."""
        return self.cache.tensors

    def _copy_cache(self, source: int, target: int, slots: int) -> None:
        for tensor in self.by_slot:
            copy_states(tensor, source, target, slots)

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[Chosen]:
        inputs = inputs_of(bucket, segments)
        chosen, keys, values, *features = self.graphs[bucket](**inputs)
        write_slots(self.cache, inputs["rows"], inputs["slots"], unstacked(keys, values))
        self._keep(inputs, features)
        return picked(bucket, chosen, segments)

    def _keep(self, inputs: Mapping[str, Tensor], features: Sequence[Tensor]) -> None:
        if self._kept is not None:
            (returned,) = features
            self._kept.write(inputs["rows"], inputs["slots"], returned)

    def _in_turn(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Compute rows that do not fit into a single graph, in as few graph calls as possible.
        Prompt chunks and trees are computed separately.
        """
        holding = [graph for graph in self.graphs if all(holds(graph, [row]) for row in segments)]
        if holding:
            limit = max(bucket.rows for bucket in holding)
            return self.choose(segments[:limit]) + self.choose(segments[limit:])
        chunk = [len(segment.pick) == 1 < len(segment.tokens) for segment in segments]
        if any(chunk) and not all(chunk):
            answers = dict[int, Chosen]()
            for kind in (True, False):
                places = [place for place, is_chunk in enumerate(chunk) if is_chunk == kind]
                results = self.choose([segments[place] for place in places])
                answers |= dict(zip(places, results, strict=True))
            return [answers[place] for place in range(len(segments))]
        half = len(segments) // 2
        return self.choose(segments[:half]) + self.choose(segments[half:])

    def _in_parts(self, segment: Segment) -> Chosen:
        """Compute a row in several graph calls: a tree again for the depths beyond the graphs'
        noise, a long chain in pieces.
        """
        levels = max((bucket.levels for bucket in self.graphs if fits(bucket, segment)), default=0)
        if levels:
            return self._by_depth(segment, levels)
        sizes = [
            bucket.nodes
            for bucket in self.graphs
            if bucket.slots >= segment.context.shape[1] and bucket.nodes < len(segment.tokens)
        ]
        if not sizes:
            limit = max(bucket.slots for bucket in self.graphs)
            raise LimitExceeded(
                f"{segment.context.shape[1]} slots of context: the largest graph of this artefact "
                f"reads {limit}"
            )
        head, tail = _cut(segment, max(sizes))
        self.choose([head])
        return self.choose([tail])[0]

    def _by_depth(self, segment: Segment, levels: int) -> Chosen:
        positions = segment.positions[segment.pick]
        near = positions < positions.min() + levels
        groups = [np.flatnonzero(group).astype(np.int32) for group in (near, ~near)]
        return joined([self.choose([picking(segment, group)])[0] for group in groups], groups)


def _cut(segment: Segment, size: int) -> tuple[Segment, Segment]:
    """Split a chain into its first `size` nodes, and the rest with these nodes as context.

    Raises LimitExceeded unless the nodes are a chain without picks among its first nodes.
    """
    if (
        segment.pick.min() < size
        or not segment.tree_mask[size:, :size].all()
        or segment.context.shape[0] > 1
    ):
        raise LimitExceeded(
            f"a tree of {len(segment.tokens)} nodes in one call: this artefact takes {size} with "
            f"{segment.context.shape[1]} slots"
        )
    head = Segment(
        segment.row, segment.tokens[:size], segment.slots[:size], segment.positions[:size],
        segment.context, segment.tree_mask[:size, :size], np.array([size - 1], dtype=np.int32),
        SamplingParams(),
    )  # fmt: skip
    width = segment.context.shape[1]
    context = np.zeros((1, max(width, int(head.slots.max()) + 1)), dtype=np.bool_)
    context[:, :width] = segment.context
    context[:, head.slots] = True
    tail = segment._replace(
        tokens=segment.tokens[size:], slots=segment.slots[size:],
        positions=segment.positions[size:], context=context,
        tree_mask=segment.tree_mask[size:, size:], pick=segment.pick - size,
    )  # fmt: skip
    return head, tail


def read_compiled(directory: Path) -> Manifest:
    """Read an artefact's manifest; check that it fits this machine and that files are intact."""
    manifest = read_manifest(directory)
    if manifest.target != "cpu":
        raise BadArtifact(
            f"{directory} was built for {manifest.target}: serve it there with --device neuron, or "
            "build one with --target cpu"
        )
    check_files(directory, manifest)
    check_machine(directory, manifest)
    return manifest


def form_of(manifest: Manifest) -> FeatureForm:
    """Return the form of the features that an artefact's graphs return."""
    return FeatureForm(manifest.features, parse_config(manifest.config).hidden_size)


def host() -> dict[str, str]:
    """Return the properties of this machine on which packages depend, such as CPU instructions."""
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_instructions": " ".join(
            name for name in _INSTRUCTIONS if getattr(torch.cpu, f"_is_{name}_supported")()
        ),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def check_machine(directory: Path, manifest: Manifest) -> None:
    """Raise BadArtifact if the artefact was built for another CPU or with another torch."""
    for name, actual in {**host(), "torch": torch.__version__}.items():
        built = (manifest.versions if name == "torch" else manifest.host).get(name)
        if built != actual:
            raise BadArtifact(
                f"{directory} was built with {name} {built}, this machine has {actual}: {REBUILD}"
            )


def load_compiled(directory: Path, manifest: Manifest) -> CompiledModel:
    """Load an artefact's graphs with its weights and empty caches, after read_compiled()."""
    constants = load_constants(directory / WEIGHTS, parse_config(manifest.config), manifest)
    graphs = load_graphs(directory, manifest.buckets, constants)
    return CompiledModel(graphs, cache_in(constants), form_of(manifest))


def load_constants(weights: Path, config: ModelConfig, manifest: Manifest) -> dict[str, Tensor]:
    """Return a model's weights and empty caches, by their names in the graphs."""
    from safetensors.torch import load_file

    tensors = load_file(weights)
    check_sizes({name: tensor.shape for name, tensor in tensors.items()}, config, weights)
    constants = {f"decoder.{name}": tensor for name, tensor in tensors.items()}
    dtype = constants["decoder.model.norm.weight"].dtype
    cache = empty_cache(config, manifest.rows, manifest.capacity, dtype)
    return constants | dict(zip(cache_names(config.layers), cache.tensors, strict=True))


def cache_in(constants: Mapping[str, Tensor]) -> KeysValues:
    """Return the caches among a model's constants."""
    layers = sum(name.startswith("keys_") for name in constants)
    return KeysValues.of(constants[name] for name in cache_names(layers))


def graph_path(bucket: Bucket) -> str:
    """Return the path of a bucket's graph in an artefact."""
    return f"graphs/{bucket.name}.pt2"


def load_graphs(
    directory: Path, buckets: Iterable[AnyBucket], constants: Mapping[str, Tensor]
) -> dict[AnyBucket, Graph]:
    """Load the packages of these buckets; see load_graph()."""
    return {bucket: load_graph(directory / graph_path(bucket), constants) for bucket in buckets}


def load_graph(path: Path, constants: Mapping[str, Tensor]) -> Graph:
    """Load a package that uses these weights and caches without copying them. Raises BadArtifact.

    Avoids torch's aoti_load_package, which compiles test programs with g++ to warn of a different
    CPU: check_machine() has already rejected that.
    """
    from torch._C._aoti import AOTIModelPackageLoader
    from torch.export.pt2_archive._package import AOTICompiledModel

    try:
        graph = AOTICompiledModel(AOTIModelPackageLoader(str(path), "model", False, 1, -1))
        names = graph.get_constant_fqns()
        unknown = sorted(set(names) - constants.keys())
        if unknown:
            raise BadArtifact(
                f"{path} needs {unknown[0]}, which this artefact does not have: {REBUILD}"
            )
        graph.load_constants(
            {name: constants[name] for name in names}, check_full_update=True, user_managed=True
        )
    except RuntimeError as error:
        raise BadArtifact(
            f"{path} cannot be loaded ({str(error).splitlines()[0]}): {REBUILD}"
        ) from error
    return graph
