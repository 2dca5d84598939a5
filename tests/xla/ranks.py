"""One rank of a tensor-parallel target with collectives of our own choice: real ones between
threads, or torch_xla's to be lowered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compile.parallel import parallel_config, parallel_tensors
from inference.model.cache import KeysValues
from inference.model.decoder import Decoder, Layers
from inference.model.verify_graph import StatefulGraph
from inference.model.vocabulary import VocabularyShare

RANKS = 2


class Collectives(Protocol):
    """What a rank asks of the others."""

    def add(self, part: Tensor) -> Tensor: ...

    def join(self, part: Tensor, axis: int = -1) -> Tensor:
        """Every rank's part beside each other on one axis, in order of rank."""
        ...


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


def rank_graph(whole: StatefulGraph, rank: int, collectives: Collectives) -> StatefulGraph:
    """This rank's share of a graph: its heads of the caches, its cut of every weight that is
    dealt out.
    """
    vocabulary = whole.decoder.vocabulary
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


class Threads:
    """Ranks as threads that meet at every collective."""

    def __init__(self) -> None:
        self._barrier, self._parts = threading.Barrier(RANKS, timeout=60), dict[int, Tensor]()

    def run(self, graphs: list[StatefulGraph], inputs: dict[str, Tensor]) -> list[Tensor]:
        """What each rank returns for the same inputs."""
        results: dict[int, Tensor] = {}

        def one(rank: int) -> None:
            _here.rank = rank
            with torch.no_grad():
                results[rank] = graphs[rank](**inputs)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[rank] for rank in range(RANKS)]

    def add(self, part: Tensor) -> Tensor:
        return torch.stack(list(self._exchange(part))).sum(0)

    def join(self, part: Tensor, axis: int = -1) -> Tensor:
        return torch.cat(list(self._exchange(part)), axis)

    def _exchange(self, part: Tensor) -> Iterator[Tensor]:
        self._parts[_here.rank] = part
        self._barrier.wait()
        parts = [self._parts[rank] for rank in range(RANKS)]
        self._barrier.wait()
        return iter(parts)


_here = threading.local()
