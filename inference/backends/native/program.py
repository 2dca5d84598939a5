"""One rank of a target on native PyTorch: the rank's share of the weights and caches on a device,
and a compiled callable for each graph: a StatefulGraph that writes its caches in place.

All ranks run the same program, so that one compilation suffices. Nothing in the program depends on
the number of its rank. The first call of a callable compiles it for one shape. A call with another
shape is an error, so that clients never wait for a compilation. Not yet run on hardware: see
docs/neuron-reference.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed._functional_collectives as functional
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inference.backends.native.sdk import Machine
from inference.backends.neuron.model import calls_between, needs_noise
from inference.errors import BadArtifact
from inference.files.artifact import CompiledTarget
from inference.model.cache import KeysValues, empty_cache, places_of
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.config import ModelConfig, read_config
from inference.model.choice.arithmetic import Arithmetic
from inference.model.choice.graph_choice import empty_window, window_places
from inference.model.choice.vocabulary import VocabularyShare
from inference.model.decoder import Decoder
from inference.model.graphs.verify_graph import StatefulGraph
from inference.model.layers import Layers

GRAPHS = "graphs/compiled"
"""Directory of the compiled graphs in an artefact, in TorchNeuron's layout."""

SHARDED = "weights"
"""Directory with the weights of each rank, and the config.json of the sharded model."""

MEETING = timedelta(minutes=10)
"""Maximum time for which ranks wait for each other to join the group."""


class _PlainArgmax(TorchFunctionMode):
    """Computes argmax along the last axis by reductions that each have a single input tensor.

    torch-mlir lowers argmax to a reduction of values and indices together, which neuronx-cc
    rejects. The PyTorch/XLA packages replace argmax by their own implementation.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.argmax, torch.Tensor.argmax):
            return func(*args, **(kwargs or {}))
        scores, axis = args
        if axis not in (-1, scores.dim() - 1) or kwargs:
            raise NotImplementedError("argmax along the last axis is what is computed here")
        ids = torch.arange(scores.shape[-1], dtype=torch.int32, device=scores.device)
        best = scores.amax(-1, keepdim=True)
        return torch.where(scores == best, ids, scores.shape[-1]).amin(-1)


class InPlaceGraph(StatefulGraph):
    """A StatefulGraph that updates its caches in place, by writing contiguous runs.

    index_copy_ is not used, because TorchNeuron turns it into a scatter of single numbers.
    """

    def forward(self, *args: Any, **inputs: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Run StatefulGraph.forward()."""
        with _PlainArgmax():
            return StatefulGraph.forward(self, *args, **inputs)

    def fill_noise(
        self, rows: Tensor, positions: Tensor, seed: Tensor, ids: Tensor, by: Arithmetic
    ) -> None:
        """Write the noise of these positions and ids into the windows, in place."""
        assert self.noise is not None, "a graph without noise windows cannot fill them"
        noise = by.noise(seed[:, None], positions, ids)
        self.noise.index_put_((window_places(rows, positions[:, 0]),), noise)

    def touch_noise(self) -> None:
        """Do nothing: a graph that does not change the windows needs no reference to them."""

    def write(self, rows: Tensor, slots: Tensor, new: KeysValues, which: str = "") -> None:
        """Write new keys and values at rows [B] and slots [B, T], in place."""
        cache = self.cache(which)
        places = places_of(cache.keys[0], rows, slots)
        for tensor, update in zip(cache.tensors, new.tensors, strict=True):
            tensor.flatten(0, 1).index_put_((places,), update.flatten(0, 1))

    def copy_row(self, source: Tensor, target: Tensor, which: str = "") -> None:
        """Copy a row of a model's caches to another row, in place. source, target: [1]"""
        for tensor in self.cache(which).tensors:
            tensor.index_put_((target,), tensor.index_select(0, source))


class Collectives(NamedTuple):
    """Operations with which ranks exchange results."""

    ranks: int
    total: Callable[[Tensor], Tensor]
    """Returns the sum over all ranks."""
    joined: Callable[[Tensor], Tensor]
    """Returns the tensors of all ranks, concatenated along the first axis."""


def _same(x: Tensor) -> Tensor:
    return x


ALONE = Collectives(1, _same, _same)
"""The operations for a single rank."""


def functional_collectives(ranks: int) -> Collectives:
    """Return collectives over torch.distributed's default group that torch.compile can trace."""
    group = torch.distributed.group.WORLD
    assert group is not None, "this process has joined its group"
    return Collectives(
        ranks,
        lambda x: functional.all_reduce(x, "sum", group),
        lambda x: functional.all_gather_single(x, 0, group),
    )


def rank_layers(among: Collectives) -> Layers:
    """Return the types of layers of one rank, for a Decoder whose config is sharded evenly.

    All ranks run the same program, which does not know its rank: embeddings are split along their
    width, and a weight contains the ids of the rank's part of the head. Sums are in float32.
    """
    ranks = among.ranks

    class Row(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            partial = among.total(nn.functional.linear(x, self.weight).float()).to(x.dtype)
            return partial if self.bias is None else partial + self.bias

    class Embedding(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            share = nn.functional.embedding(ids, self.weight)
            shares = among.joined(share).view(ranks, *share.shape)
            return shares.permute(1, 2, 0, 3).flatten(2)

    class Head(nn.Linear):
        """Computes this rank's logits. The decoder handles the logits of padding."""

        def forward(self, states: Tensor, vocabulary: int) -> Tensor:  # type: ignore[override]
            return nn.functional.linear(states, self.weight)

    def column(inputs: int, outputs: int, bias: bool) -> Any:
        return nn.Linear(inputs, outputs // ranks, bias)

    def row(inputs: int, outputs: int, bias: bool) -> Any:
        return Row(inputs // ranks, outputs, bias)

    def embedding(ids: int, size: int) -> Any:
        return Embedding(ids, size // ranks)

    def head(inputs: int, outputs: int, bias: bool) -> Any:
        return Head(inputs, outputs // ranks, bias)

    def ids(outputs: int) -> Any:
        return nn.Linear(1, outputs // ranks, False)

    share = VocabularyShare(ranks, among.joined)
    return Layers(column, row, embedding, head, share=share, ids=ids)


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
    window = empty_window(target.rows, ids, device) if needs_noise(target) else None
    graphs = compiled_graphs(plan, decoder.to(device).eval(), cache, window)
    return RankProgram(graphs, device, room)


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
    names = [*(bucket.name for bucket in plan.target.buckets), *calls_between(plan.target)]
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
