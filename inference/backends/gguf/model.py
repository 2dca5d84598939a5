"""A GGUF file's model as a Model, computed by llama.cpp.

llama.cpp computes logits; host_choice chooses from them, with the noise of every backend. Slots
become llama.cpp's sequences in gguf_trees if the model stores only keys, otherwise in gguf_states.

llama.cpp promises no bit-equal rows: its kernels, and the order in which keys are added up, depend
on the batch and on where cells lie. So a text is the target's own up to near-ties of the scores.
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
    """A way in which llama.cpp computes the new nodes of segments, of distinct rows.

    rows, capacity, branches: as in Model
    batch: most tokens of a decode
    """

    rows: int
    capacity: int
    branches: bool
    batch: int

    def check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that cannot be computed even alone."""
        ...

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """Yield each segment with the logits at its picked nodes, [p, V]. The next step overwrites
        them.

        Where that fails, the new nodes' slots hold nothing, and the others what they held. Raises
        Unavailable.
        """
        ...

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy a row, as Model.copy_row does."""
        ...


class GgufModel:
    """Rows of what a model keeps, in one llama.cpp context.

    vocabulary: ids of the tokenizer; those beyond are never chosen
    kind: the file's own name for its weights
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
        """Return logits at every node of a tree behind a prompt on row 0."""
        sequence = ModelSequence(self, 0, SamplingParams())
        sequence.extend(prompt)
        return self._each([sequence.prepare(tree)], lambda segment, logits: logits.copy())[0]

    def _each(self, segments: Sequence[Segment], use: Callable[[Segment, Floats], T]) -> list[T]:
        """Return what `use` makes of each segment and its logits [p, V]."""
        check_rows(segments)
        for segment in segments:
            self._check(segment)
        computed = self._computation.logits(segments)
        return [use(segment, logits[:, : self._vocabulary]) for segment, logits in computed]

    def _check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that no decode can hold."""
        nodes, highest = len(segment.tokens), segment.positions.max()
        if nodes > self.max_nodes:
            raise LimitExceeded(f"{nodes} nodes in one call: this model takes {self.max_nodes}")
        self._computation.check(segment)
        if highest >= self.capacity:
            raise LimitExceeded(f"position {highest}: this model has {self.capacity} slots a row")
