"""A target compiled ahead of time for this machine's CPU: a Model over an artefact's packages.

All graphs share one set of weights and one set of KV caches. A call is padded to the cheapest graph
that holds it, and split if none does. Nothing is traced and no model source is needed: the packages
are machine code.
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
from inference.backends.target_features import (
    NOTHING,
    FeatureForm,
    FeatureStore,
    form_of,
)
from inference.errors import BadArtifact, InvalidRequest, LimitExceeded
from inference.files.artifact import Bucket, Manifest, check_files, read_manifest
from inference.model.cache import KeysValues, cache_names, copy_states, empty_cache, write_slots
from inference.model.checkpoints.config import ModelConfig, check_sizes, parse_config
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray

WEIGHTS = "weights/model.safetensors"
REBUILD = "build it again here with outrider compile --target cpu"
_INSTRUCTIONS = ("avx2", "avx512", "avx512_bf16", "vnni", "amx_tile")  # a package may hold them

AnyBucket = TypeVar("AnyBucket", bound=Bucket)

Graph = Callable[..., tuple[Tensor, ...]]
"""Takes inputs by name; returns chosen [B, P], then new keys and new values, each [layers, B, T,
width], then features [B, T, width] where it was built to. A round returns more (fused.py).
"""


class CompiledModel:
    """Compiled graphs, one for each bucket, over shared KV caches. It is a FeatureModel.

    graphs: by bucket, the cheapest first
    returned: features that the graphs return
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
        """Raise InvalidRequest: a compiled target only chooses."""
        raise InvalidRequest(
            "this artefact is a target's: it chooses tokens and cannot draft; draft with a model "
            "directory"
        )

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the cheapest graph's shape.

        Where no graph holds so many rows, return what the calls of `choose` compute together. So
        a call that is split has measured times of its own.
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
        """See FeatureModel. They are stored in host memory. The graphs return all of them."""
        slots, here = self.capacity + 1, torch.device("cpu")
        self._kept = FeatureStore(layers, self._returned, self.rows, slots, self.dtype, here)

    def features(self, row: int, slots: IntArray) -> Tensor:  # [n, kept layers * hidden]
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
        for held in self.by_slot:
            copy_states(held, source, target, slots)

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[Chosen]:
        inputs = inputs_of(bucket, segments)
        chosen, keys, values, *features = self.graphs[bucket](**inputs)
        write_slots(self.cache, inputs["rows"], inputs["slots"], unstacked(keys, values))
        self._keep(inputs, features)
        return picked(bucket, chosen, segments)

    def _keep(self, inputs: Mapping[str, Tensor], features: Sequence[Tensor]) -> None:
        """Store the features that a graph returned for these inputs, if there are any."""
        if self._kept is not None:
            (returned,) = features
            self._kept.write(inputs["rows"], inputs["slots"], returned)

    def _in_turn(self, segments: Sequence[Segment]) -> list[Chosen]:
        """Compute rows that no graph holds together, in as few calls as the graphs allow.

        Each call has as many rows as the largest graph takes. Prompt chunks and trees are separate.
        """
        holding = [graph for graph in self.graphs if all(holds(graph, [row]) for row in segments)]
        if holding:
            most = max(bucket.rows for bucket in holding)
            return self.choose(segments[:most]) + self.choose(segments[most:])
        chunk = [len(segment.pick) == 1 < len(segment.tokens) for segment in segments]
        if any(chunk) and not all(chunk):
            answers = dict[int, Chosen]()
            for kind in (True, False):
                places = [place for place, is_chunk in enumerate(chunk) if is_chunk == kind]
                made = self.choose([segments[place] for place in places])
                answers |= dict(zip(places, made, strict=True))
            return [answers[place] for place in range(len(segments))]
        half = len(segments) // 2
        return self.choose(segments[:half]) + self.choose(segments[half:])

    def _in_parts(self, segment: Segment) -> Chosen:
        """Compute one row in several calls.

        A tree that spans more depths than a graph has noise for is computed again for the deeper
        nodes. A long chain is fed in pieces.
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
            most = max(bucket.slots for bucket in self.graphs)
            raise LimitExceeded(
                f"{segment.context.shape[1]} slots of context: the largest graph of this artefact "
                f"reads {most}"
            )
        head, tail = _cut(segment, max(sizes))
        self.choose([head])
        return self.choose([tail])[0]

    def _by_depth(self, segment: Segment, levels: int) -> Chosen:
        positions = segment.positions[segment.pick]
        near = positions < positions.min() + levels
        parts = [np.flatnonzero(part).astype(np.int32) for part in (near, ~near)]
        return joined([self.choose([picking(segment, part)])[0] for part in parts], parts)


def _cut(segment: Segment, size: int) -> tuple[Segment, Segment]:
    """Split a chain into its first `size` nodes and the rest; the first part is context of the
    second.

    Raises LimitExceeded unless the nodes are a chain whose picked nodes come last.
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
    seen = segment.context.shape[1]
    context = np.zeros((1, max(seen, int(head.slots.max()) + 1)), dtype=np.bool_)
    context[:, :seen] = segment.context
    context[:, head.slots] = True
    tail = segment._replace(
        tokens=segment.tokens[size:], slots=segment.slots[size:],
        positions=segment.positions[size:], context=context,
        tree_mask=segment.tree_mask[size:, size:], pick=segment.pick - size,
    )  # fmt: skip
    return head, tail


def read_compiled(directory: Path) -> Manifest:
    """Read the manifest of an artefact, and check that it may run here and that its files are
    unchanged.
    """
    manifest = read_manifest(directory)
    if manifest.target != "cpu":
        raise BadArtifact(
            f"{directory} was built for {manifest.target}: serve it there with --device neuron, or "
            "build one with --target cpu"
        )
    check_files(directory, manifest)
    check_machine(directory, manifest)
    return manifest


def host() -> dict[str, str]:
    """Facts about this machine that a package depends on: it holds instructions of the CPU that
    built it.
    """
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_instructions": " ".join(
            name for name in _INSTRUCTIONS if getattr(torch.cpu, f"_is_{name}_supported")()
        ),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def check_machine(directory: Path, manifest: Manifest) -> None:
    """Raise BadArtifact for machine code that was made for another CPU or another torch."""
    for name, here in {**host(), "torch": torch.__version__}.items():
        built = (manifest.versions if name == "torch" else manifest.host).get(name)
        if built != here:
            raise BadArtifact(
                f"{directory} was built with {name} {built}, this machine has {here}: {REBUILD}"
            )


def load_compiled(directory: Path, manifest: Manifest) -> CompiledModel:
    """Load the artefact's graphs over its weights and empty caches. `read_compiled` has checked
    it.
    """
    constants = load_constants(directory / WEIGHTS, parse_config(manifest.config), manifest)
    graphs = load_graphs(directory, manifest.buckets, constants)
    return CompiledModel(graphs, cache_in(constants), form_of(manifest))


def load_constants(weights: Path, config: ModelConfig, manifest: Manifest) -> dict[str, Tensor]:
    """Return a model's weights and empty caches by the names that its graphs use."""
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
    """The bucket's file in an artefact."""
    return f"graphs/{bucket.name}.pt2"


def load_graphs(
    directory: Path, buckets: Iterable[AnyBucket], constants: Mapping[str, Tensor]
) -> dict[AnyBucket, Graph]:
    """Load an artefact's packages of these buckets; see load_graph()."""
    return {bucket: load_graph(directory / graph_path(bucket), constants) for bucket in buckets}


def load_graph(path: Path, constants: Mapping[str, Tensor]) -> Graph:
    """Load a package over these weights and caches. They stay the caller's: nothing is copied.

    torch's aoti_load_package is not used: it compiles trial programs with g++ to warn of another
    CPU, and check_machine refuses that one already. Raises BadArtifact.
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
