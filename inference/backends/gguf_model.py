"""A GGUF file's model as a Model, computed by llama.cpp.

llama.cpp computes logits; host_choice makes the choice of them, so the noise is that of every
backend. Slots are mapped to llama.cpp's sequences by gguf_branches.

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
from inference.backends.gguf_branches import BranchSequences, Memory
from inference.backends.gguf_library import TokenBatch
from inference.backends.host_choice import Floats, choose_of_row, rank_of_row
from inference.backends.sequence import ModelSequence
from inference.backends.tree_lines import lines_of, tips
from inference.errors import LimitExceeded, Unavailable
from inference.sampling import SamplingParams
from inference.tree import IntArray, TokenTree

T = TypeVar("T")


class LlamaContext(Memory, Protocol):
    """The work of GgufContext: it computes tokens as members of sequences, whose cells it keeps.

    sequences: how many there are, numbered from 0
    """

    sequences: int

    def decode(self, asked: TokenBatch) -> NDArray[np.float32]:
        """Return logits of the picked tokens, [picked, vocabulary]. Raises Unavailable."""
        ...


class GgufModel:
    """Rows of keys in one llama.cpp context.

    batch: most tokens of a decode
    vocabulary: ids of the tokenizer; those beyond are never chosen
    kind: the file's own name for its weights
    device: cpu, or cuda:N for the N-th GPU
    """

    copies_rows = masks = True

    def __init__(
        self,
        context: LlamaContext,
        *,
        rows: int,
        capacity: int,
        max_nodes: int,
        batch: int,
        vocabulary: int,
        kind: str,
        threads: int,
        device: str,
    ) -> None:
        if not rows < (most := context.sequences // 2):
            raise LimitExceeded(f"{rows} rows: this GGUF model takes up to {most - 1}")
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.device, self.dtype, self.threads = device, kind, threads
        self._context, self._batch, self._vocabulary = context, batch, vocabulary
        self._branches = BranchSequences(context, context.sequences, rows, capacity)
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._each(segments, lambda segment, logits: choose_of_row(logits, segment))

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._each(segments, lambda segment, logits: rank_of_row(logits, segment, k))

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._branches.copy_row(source, target, slots)
        self._tokens[target] = self._tokens[source]

    def logits_of(self, prompt: Sequence[int], tree: TokenTree) -> NDArray[np.float32]:  # [n, V]
        """Return logits at every node of a tree behind a prompt on row 0."""
        sequence = ModelSequence(self, 0, SamplingParams())
        sequence.extend(prompt)
        return self._decode([sequence.prepare(tree)])[0][:, : self._vocabulary]

    def _each(self, segments: Sequence[Segment], use: Callable[[Segment, Floats], T]) -> list[T]:
        """Return what `use` makes of each segment and its logits [p, V], by as few decodes as hold
        them.
        """
        check_rows(segments)
        for segment in segments:
            self._check(segment)
        made = list[T]()
        for group in self._groups(segments):
            for segment, logits in zip(group, self._decode(group), strict=True):
                made.append(use(segment, logits[:, : self._vocabulary]))
        return made

    def _check(self, segment: Segment) -> None:
        """Raise LimitExceeded for a segment that no decode can hold."""
        nodes, needed, room = len(segment.tokens), _sequences(segment), self._branches.room
        if nodes > self.max_nodes:
            raise LimitExceeded(f"{nodes} nodes in one call: this model takes {self.max_nodes}")
        if needed > room:
            raise LimitExceeded(
                f"{len(tips(segment))} branches in one call need {needed} sequences: llama.cpp has "
                f"{room} here"
            )
        if segment.positions.max() >= self.capacity:
            raise LimitExceeded(
                f"position {segment.positions.max()}: this model has {self.capacity} slots a row"
            )

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Segments that fit into one decode by their nodes and sequences."""
        group, nodes, needed = list[Segment](), 0, 0
        for segment in segments:
            nodes, needed = nodes + len(segment.tokens), needed + _sequences(segment)
            if group and (nodes > self._batch or needed > self._branches.room):
                yield group
                group, nodes, needed = [], len(segment.tokens), _sequences(segment)
            group.append(segment)
        yield group

    def _decode(self, group: Sequence[Segment]) -> list[NDArray[np.float32]]:  # of [p, V] each
        """Compute a group's new nodes and return the logits at the picked ones.

        Where that fails, the new nodes' slots hold nothing, and the others what they held.
        """
        for segment in group:
            self._branches.rewrite(segment.row, segment.slots, segment.positions)
            self._tokens[segment.row, segment.slots] = segment.tokens
        lines = [
            (segment, line)
            for segment in group
            for line in lines_of(segment, self._branches.positions[segment.row])
        ]
        for segment, line in lines:
            self._recall(segment.row, line.path)
        self._branches.begin()
        members = {segment.row: [list[int]() for _ in segment.tokens] for segment in group}
        taken = list[int]()
        for segment, line in lines:
            sequence = self._branches.take(segment.row, line.path)
            taken.append(sequence)
            for node in line.nodes.tolist():
                members[segment.row][node].append(sequence)
        picked = [np.isin(np.arange(len(segment.tokens)), segment.pick) for segment in group]
        asked = TokenBatch(
            np.concatenate([segment.tokens for segment in group]),
            np.concatenate([segment.positions for segment in group]),
            [sequences for of_row in members.values() for sequences in of_row],
            np.concatenate(picked),
        )
        logits = self._compute(asked)
        for (segment, line), sequence in zip(lines, taken, strict=True):
            self._branches.extend(sequence, segment.slots[line.nodes])
        return _dealt(logits, group, picked)

    def _recall(self, row: int, path: IntArray) -> None:
        """Compute the path's keys again that no sequence holds any more."""
        known = self._branches.known(row, path)
        while known < len(path):
            part = path[known : known + self._batch]
            self._branches.begin()
            sequence = self._branches.take(row, path[:known])
            asked = TokenBatch(
                self._tokens[row, part],
                np.arange(known, known + len(part), dtype=np.int32),
                [[sequence]] * len(part),
                np.zeros(len(part), dtype=np.bool_),
            )
            self._compute(asked)
            self._branches.extend(sequence, part)
            known += len(part)

    def _compute(self, asked: TokenBatch) -> NDArray[np.float32]:
        try:
            return self._context.decode(asked)
        except Unavailable:
            self._branches.restore()
            raise


def _sequences(segment: Segment) -> int:
    """Sequences that a decode needs: one for each branch, and one for each path above them."""
    ends, seen = tips(segment), segment.context
    return len(ends) + (1 if len(seen) == 1 else len({seen[end].tobytes() for end in ends}))


def _dealt(
    logits: NDArray[np.float32], group: Sequence[Segment], picked: Sequence[NDArray[np.bool_]]
) -> list[NDArray[np.float32]]:
    """Each segment's logits in the order of its picked nodes, of those of the whole decode."""
    dealt, first = list[NDArray[np.float32]](), 0
    for segment, chosen in zip(group, picked, strict=True):
        dealt.append(logits[first + chosen.cumsum()[segment.pick] - 1])
        first += int(chosen.sum())
    return dealt
