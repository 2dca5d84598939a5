"""A GGUF file's model as a Model, run by llama.cpp.

llama.cpp computes logits; host_choice samples from them with the same noise as all backends. If the
model has only keys, trees.py maps slots to llama.cpp's sequences; with running states, states.py.

llama.cpp's results depend on the batch and on the order of cells. So the output equals that of the
target alone except at near-ties of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.libraries.host_choice import Floats, choose_of_row, rank_of_row
from inference.backends.sequence import ModelSequence
from inference.errors import LimitExceeded
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree

T = TypeVar("T")


class Computation(Protocol):
    """Computes the new nodes of segments by llama.cpp. Segments have distinct rows.

    rows, capacity, branches: as in Model
    batch: maximum tokens per decode
    """

    rows: int
    capacity: int
    branches: bool
    batch: int

    def check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that is too large even on its own."""
        ...

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """Yield each segment with the logits [p, V] at its picked nodes. The next iteration
        overwrites them.

        If this raises Unavailable, the slots of new nodes are empty, and other slots unchanged.
        """
        ...

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """See Model.copy_row."""
        ...


class GgufModel:
    """The model of a GGUF file.

    vocabulary: number of token ids of the tokenizer; higher ids are never chosen
    kind: llama.cpp's description of the weights
    device: cpu, or cuda:N for the N-th GPU
    """

    masks = True

    def __init__(
        self,
        computation: Computation,
        *,
        max_nodes: int,
        vocabulary: int,
        kind: str,
        threads: int,
        device: str,
    ) -> None:
        self.rows, self.capacity = computation.rows, computation.capacity
        self.branches = computation.branches
        self.max_nodes = max_nodes
        self.device, self.dtype, self.threads = device, kind, threads
        self._computation, self._vocabulary = computation, vocabulary

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._each(segments, lambda segment, logits: choose_of_row(logits, segment))

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._each(segments, lambda segment, logits: rank_of_row(logits, segment, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._computation.copy_row(source, target, slots)

    def logits_of(self, prompt: Sequence[int], tree: TokenTree) -> NDArray[np.float32]:  # [n, V]
        """Return the logits at every node of a tree after a prompt, using row 0."""
        sequence = ModelSequence(self, 0, SamplingParams())
        sequence.extend(prompt)
        return self._each([sequence.prepare(tree)], lambda segment, logits: logits.copy())[0]

    def _each(self, segments: Sequence[Segment], use: Callable[[Segment, Floats], T]) -> list[T]:
        """Compute segments, and return the result of `use(segment, logits [p, V])` for each."""
        check_rows(segments)
        for segment in segments:
            self._check(segment)
        computed = self._computation.logits(segments)
        return [use(segment, logits[:, : self._vocabulary]) for segment, logits in computed]

    def _check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that is too large for a decode."""
        nodes, highest = len(segment.tokens), segment.positions.max()
        if nodes > self.max_nodes:
            raise LimitExceeded(f"{nodes} nodes in one call: this model takes {self.max_nodes}")
        self._computation.check(segment)
        if highest >= self.capacity:
            raise LimitExceeded(f"position {highest}: this model has {self.capacity} slots a row")
