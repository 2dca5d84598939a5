"""Graphs for native PyTorch on Neuron: a StatefulGraph that writes its caches in place, and layers
that divide a model among ranks.

All ranks run the same program, so that one compilation suffices. Nothing in the program depends on
the number of its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inference.model.cache import KeysValues, places_of
from inference.model.choice.arithmetic import Arithmetic
from inference.model.choice.graph_choice import window_places
from inference.model.choice.vocabulary import VocabularyShare
from inference.model.graphs.verify_graph import StatefulGraph
from inference.model.layers import Layers


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
