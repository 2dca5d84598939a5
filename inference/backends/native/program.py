"""One rank of a target on native PyTorch: the rank's share of the weights and caches on a device,
and a compiled callable for each graph.

The first call of a callable compiles it for one shape. A call with another shape is an error, so
that clients never wait for a compilation. Not yet run on hardware: see docs/neuron-reference.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from inference.backends.native.graph import (
    ALONE,
    InPlaceGraph,
    functional_collectives,
    rank_layers,
)
from inference.backends.native.sdk import Machine
from inference.backends.neuron.model import COPY, FILL
from inference.errors import BadArtifact
from inference.files.artifact import Bucket, CompiledTarget
from inference.model.cache import KeysValues, empty_cache
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.config import ModelConfig, read_config
from inference.model.choice.noise_window import empty_window
from inference.model.decoder import Decoder

GRAPHS = "graphs/compiled"
"""Directory of the compiled graphs in an artefact, in TorchNeuron's layout."""

SHARDED = "weights"
"""Directory with the weights of each rank, and the config.json of the sharded model."""

MEETING = timedelta(minutes=10)
"""Maximum time for which ranks wait for each other to join the group."""


def rank_weights(rank: int) -> str:
    """Return the path of a rank's weights in an artefact."""
    return f"{SHARDED}/rank{rank}.safetensors"


class RankPlan(NamedTuple):
    """Inputs from which a rank loads its part of a target. Can be sent to another process."""

    directory: Path  # of the artefact
    target: CompiledTarget
    machine: Machine

    @property
    def ranks(self) -> int:
        return self.target.tensor_parallel


class RankProgram:
    """A Program (inference.backends.neuron.model) of one rank: calls a graph by name.

    room: host memory to which features are copied; None if another rank copies them
    """

    def __init__(
        self, graphs: Mapping[str, Any], device: torch.device, room: Tensor | None = None
    ) -> None:
        self._graphs, self._device, self._room = graphs, device, room

    @torch.no_grad()
    def __call__(self, graph: str, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return a graph's chosen tokens and, with `room`, its features, on the host. The next call
        overwrites them.
        """
        on_device = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        outputs: Tensor | tuple[Tensor, ...] = self._graphs[graph](**on_device)
        if isinstance(outputs, Tensor):
            return (outputs.cpu(),)
        chosen, features = outputs
        if self._room is None:
            return (chosen.cpu(),)
        buffer = self._room[: features.numel()].view(features.shape)
        return chosen.cpu(), buffer.copy_(features)


def room_for_features(plan: RankPlan) -> Tensor | None:
    """Return shared memory for the features of the largest call; None if the graphs return no
    features.
    """
    target = plan.target
    if not target.features:
        return None
    width = len(target.features) * read_config(plan.directory / SHARDED).hidden_size
    max_nodes = max(bucket.rows * bucket.nodes for bucket in target.buckets)
    room = torch.empty(max_nodes * width, dtype=DTYPES[target.dtype])
    room.share_memory_()  # type: ignore[no-untyped-call]
    return room


def load_rank(plan: RankPlan, rank: int, meeting: Path, room: Tensor | None) -> RankProgram:
    """Join the group of ranks, and load one rank's part without compiling anything.

    meeting: a file through which the ranks find each other; not used for a single rank
    room: see RankProgram

    Raises BadArtifact if the weights do not fit.
    """
    among = ALONE
    if plan.ranks > 1:
        _join(plan, rank, meeting)
        among = functional_collectives(plan.ranks)
    config, target = read_config(plan.directory / SHARDED), plan.target
    with torch.device("meta"):
        decoder = Decoder(config, target.sequence_length, target.vocabulary, rank_layers(among))
    _fill(decoder, plan.directory / rank_weights(rank))
    device = torch.device(plan.machine.device)
    local, slots = own_config(config, plan.ranks), target.sequence_length + target.max_tree_nodes
    cache = empty_cache(local, target.rows, slots, DTYPES[target.dtype])
    cache = KeysValues.of(tensor.to(device) for tensor in cache.tensors)
    ids = config.vocab_size // plan.ranks
    window = empty_window(target.rows, ids, device) if draws(target.buckets) else None
    graphs = compiled_graphs(plan, decoder.to(device).eval(), cache, window)
    return RankProgram(graphs, device, room)


def draws(buckets: Iterable[Bucket]) -> bool:
    """Return whether any graph samples, so that windows of noise are needed."""
    return any(bucket.sampled for bucket in buckets)


def own_config(sharded: ModelConfig, ranks: int) -> ModelConfig:
    """Return the config of one rank's caches, with the rank's share of the key-value heads."""
    return replace(sharded, kv_heads=sharded.kv_heads // ranks)


def compiled_graphs(
    plan: RankPlan, decoder: Decoder, cache: KeysValues, window: Tensor | None
) -> dict[str, Any]:
    """Return callables for each bucket, for copying rows and for making noise, all over the same
    weights, caches and windows.

    Each callable may compile once. The limit is set for each one: otherwise they would share a
    limit, since they have the same code object.
    """
    compile_: Any = torch.compile  # its type stubs lack the limits
    names = [bucket.name for bucket in plan.target.buckets]
    names += [COPY] * (plan.target.rows > 1) + [FILL] * (window is not None)
    return {
        name: compile_(
            InPlaceGraph(decoder, cache, window, plan.target.features).requires_grad_(False),
            backend=plan.machine.compiler,
            fullgraph=True,
            dynamic=False,
            recompile_limit=1,
            isolate_recompiles=True,
        )
        for name in names
    }


def _join(plan: RankPlan, rank: int, meeting: Path) -> None:
    """Make this process a rank of the group. The device must not have been used before."""
    torch.distributed.init_process_group(
        plan.machine.collectives,
        store=torch.distributed.FileStore(str(meeting), plan.ranks),
        rank=rank,
        world_size=plan.ranks,
        timeout=MEETING,
    )


def _fill(decoder: Decoder, path: Path) -> None:
    """Load a rank's weights into a decoder on the meta device."""
    try:
        decoder.load_state_dict(load_file(path), strict=True, assign=True)
    except RuntimeError as error:
        raise BadArtifact(
            f"{path} does not fit its graphs: build the artefact again ({error})"
        ) from error
