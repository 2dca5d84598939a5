"""Trees of a llama.cpp model that keeps keys: every branch is a sequence (gguf_branches)."""

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
    """Rows of keys in one llama.cpp context.

    batch: most tokens of a decode
    """

    branches = True

    def __init__(self, context: LlamaContext, *, rows: int, capacity: int, batch: int) -> None:
        self.rows, self.capacity, self.batch = rows, capacity, batch
        self._context = context
        self._branches = BranchSequences(context, rows, capacity)
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)

    @staticmethod
    def most_rows(sequences: int) -> int:
        """Return the rows that so many sequences serve: each has one, and can have another."""
        return sequences // 2 - 1

    @staticmethod
    def sizes(rows: int, capacity: int, max_nodes: int, sequences: int) -> ContextSizes:
        """Return the sizes of a context, which may have so many sequences."""
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
        """Compute segments by as few decodes as hold them."""
        for group in self._groups(segments):
            yield from zip(group, self._decode(group), strict=True)

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Segments that fit into one decode by their nodes and sequences."""
        group, nodes, needed = list[Segment](), 0, 0
        for segment in segments:
            nodes, needed = nodes + len(segment.tokens), needed + _sequences(segment)
            if group and (nodes > self.batch or needed > self._branches.room):
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
            part = path[known : known + self.batch]
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
