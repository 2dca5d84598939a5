"""One rank of a tensor-parallel target with torch_xla's collectives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_xla  # type: ignore[import-not-found]
import torch_xla.core.xla_model as xm  # type: ignore[import-not-found]
from torch import Tensor, nn

from compile.parallel import parallel_config, parallel_tensors
from inference.model.cache import KeysValues
from inference.model.decoder import Decoder, Layers
from inference.model.verify_graph import StatefulGraph
from inference.model.vocabulary import VocabularyShare

RANKS = 2


class Collectives:
    """torch_xla's collectives: where there is one device they can be lowered (xm.all_reduce
    would leave itself out), but not run.
    """

    def add(self, part: Tensor) -> Tensor:
        total: Tensor = torch_xla._XLAC._xla_all_reduce(
            xm.REDUCE_SUM, part, 1.0, [list(range(RANKS))], False
        )
        return total

    def join(self, part: Tensor, axis: int = -1) -> Tensor:
        whole: Tensor = xm.all_gather(
            part, dim=axis % part.dim(), groups=[list(range(RANKS))], pin_layout=False
        )
        return whole


class Column(nn.Linear):
    """Some of the outputs; no rank needs the others'."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs // RANKS, bias)


class Row(nn.Linear):
    """Some of the inputs; the bias, which every rank has whole, is added to the sum."""

    def __init__(self, collectives: Collectives, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs // RANKS, outputs, bias)
        self.collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        total = self.collectives.add(F.linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class Width(nn.Embedding):
    """Some of the width of every id."""

    def __init__(self, collectives: Collectives, ids: int, size: int) -> None:
        super().__init__(ids, size // RANKS)
        self.collectives = collectives

    def forward(self, ids: Tensor) -> Tensor:
        return self.collectives.join(super().forward(ids))


class Ids(nn.Linear):
    """The head of some of the ids; every rank keeps its own logits."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs // RANKS, bias)

    def forward(self, states: Tensor, vocabulary: int) -> Tensor:  # type: ignore[override]
        return super().forward(states)


def rank_graph(whole: StatefulGraph, rank: int) -> StatefulGraph:
    """This rank's share of a graph: its heads of the caches, its cut of every weight that is
    dealt out.
    """
    vocabulary, collectives = whole.decoder.vocabulary, Collectives()
    config = parallel_config(whole.decoder.config, RANKS, vocabulary)
    layers = Layers(
        Column,
        lambda inputs, outputs, bias: Row(collectives, inputs, outputs, bias),
        lambda ids, size: Width(collectives, ids, size),
        Ids,
        share=VocabularyShare(RANKS, lambda part: collectives.join(part, 0)),
        ids=lambda ids: Column(1, ids, False),
    )
    decoder = Decoder(config, len(whole.decoder.cos), vocabulary, layers).requires_grad_(False)
    tensors = parallel_tensors(
        whole.decoder.named_parameters(), whole.decoder.config, RANKS, vocabulary
    )
    for name, mine in decoder.named_parameters():
        mine.copy_(_share(tensors[name].detach(), mine.shape, rank))
    cache = KeysValues.of(part.chunk(RANKS, 2)[rank].clone() for part in whole.cache().tensors)
    return StatefulGraph(decoder, cache, _window(whole.noise, config.vocab_size, rank))


def _window(whole: Tensor | None, ids: int, rank: int) -> Tensor | None:
    """This rank's part of the windows of noise, whose ids are padded."""
    if whole is None:
        return None
    return F.pad(whole, (0, ids - whole.shape[1])).chunk(RANKS, 1)[rank].clone()


def _share(tensor: Tensor, shape: torch.Size, rank: int) -> Tensor:
    """This rank's part along the axis that is cut, or the whole where none is."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            return tensor.chunk(RANKS, axis)[rank]
    return tensor
