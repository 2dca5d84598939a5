"""Trees of a llama.cpp model with keys: every branch is a sequence (see branches.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.gguf.branches import BranchSequences, LlamaContext
from inference.backends.gguf.library import MIN_BATCH, ContextSizes, TokenBatch
from inference.backends.libraries.host_choice import Floats
from inference.backends.libraries.tree_lines import lines_of, tips
from inference.errors import LimitExceeded, Unavailable
from inference.tree.token_tree import IntArray


class GgufTrees:
    """The rows of a model in a llama.cpp context.

    batch: maximum tokens per decode
    """

    branches = True

    def __init__(self, context: LlamaContext, *, rows: int, capacity: int, batch: int) -> None:
        self.rows, self.capacity, self.batch = rows, capacity, batch
        self._context = context
        self._branches = BranchSequences(context, rows, capacity)
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)

    @staticmethod
    def max_rows(sequences: int) -> int:
        """Return the maximum rows for a number of sequences: a row may need two sequences."""
        return sequences // 2 - 1

    @staticmethod
    def sizes(rows: int, capacity: int, max_nodes: int, sequences: int) -> ContextSizes:
        """Return the sizes of a context with up to `sequences` sequences."""
        return ContextSizes(rows * capacity, max(MIN_BATCH, max_nodes), sequences)

    def check(self, segment: Segment) -> None:
        needed, room = _sequences(segment), self._branches.room
        if needed > room:
            raise LimitExceeded(
                f"{len(tips(segment))} branches in one call need {needed} sequences: llama.cpp has "
                f"{room} here"
            )

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._branches.copy_row(source, target, slots)
        self._tokens[target] = self._tokens[source]

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """Compute segments in as few decodes as possible."""
        for group in self._groups(segments):
            yield from zip(group, self._decode(group), strict=True)

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Yield groups of segments that fit into a decode by their nodes and sequences."""
        group, nodes, needed = list[Segment](), 0, 0
        for segment in segments:
            nodes, needed = nodes + len(segment.tokens), needed + _sequences(segment)
            if group and (nodes > self.batch or needed > self._branches.room):
                yield group
                group, nodes, needed = [], len(segment.tokens), _sequences(segment)
            group.append(segment)
        yield group

    def _decode(self, group: Sequence[Segment]) -> list[NDArray[np.float32]]:  # of [p, V] each
        """Compute a group's new nodes and return the logits at the picked nodes. On failure, the
        slots of new nodes are empty, and other slots unchanged.
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
        sequences = list[int]()
        for segment, line in lines:
            sequence = self._branches.take(segment.row, line.path)
            sequences.append(sequence)
            for node in line.nodes.tolist():
                members[segment.row][node].append(sequence)
        picked = [np.isin(np.arange(len(segment.tokens)), segment.pick) for segment in group]
        batch = TokenBatch(
            np.concatenate([segment.tokens for segment in group]),
            np.concatenate([segment.positions for segment in group]),
            [ids for of_row in members.values() for ids in of_row],
            np.concatenate(picked),
        )
        logits = self._compute(batch)
        for (segment, line), sequence in zip(lines, sequences, strict=True):
            self._branches.extend(sequence, segment.slots[line.nodes])
        return _dealt(logits, group, picked)

    def _recall(self, row: int, path: IntArray) -> None:
        """Recompute the keys of a path that are no longer in any sequence."""
        length = self._branches.known(row, path)
        while length < len(path):
            slots = path[length : length + self.batch]
            self._branches.begin()
            sequence = self._branches.take(row, path[:length])
            batch = TokenBatch(
                self._tokens[row, slots],
                np.arange(length, length + len(slots), dtype=np.int32),
                [[sequence]] * len(slots),
                np.zeros(len(slots), dtype=np.bool_),
            )
            self._compute(batch)
            self._branches.extend(sequence, slots)
            length += len(slots)

    def _compute(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            return self._context.decode(batch)
        except Unavailable:
            self._branches.restore()
            raise


def _sequences(segment: Segment) -> int:
    """Return the number of sequences that a segment needs, for branches and paths above them."""
    ends, context = tips(segment), segment.context
    return len(ends) + (1 if len(context) == 1 else len({context[end].tobytes() for end in ends}))


def _dealt(
    logits: NDArray[np.float32], group: Sequence[Segment], picked: Sequence[NDArray[np.bool_]]
) -> list[NDArray[np.float32]]:
    """Split the logits of a decode by segment, in the order of each segment's picked nodes."""
    dealt, first = list[NDArray[np.float32]](), 0
    for segment, chosen in zip(group, picked, strict=True):
        dealt.append(logits[first + chosen.cumsum()[segment.pick] - 1])
        first += int(chosen.sum())
    return dealt
