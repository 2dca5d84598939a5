"""Trees of a llama.cpp model with keys: every branch is a sequence.

A cell of llama.cpp has a key, and may belong to several sequences. A node sees the cells of its
sequence, so cells above a fork belong to all sequences below it. Sequences persist between forward
passes, so that few cells change. The engine does not report free slots, so the least recently used
sequences are evicted to make room, and missing keys are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.gguf.library import MIN_BATCH, Cells, ContextSizes, LlamaContext, TokenBatch
from inference.backends.libraries.host_choice import Floats
from inference.backends.libraries.tree_lines import lines_of, tips
from inference.errors import LimitExceeded, Unavailable
from inference.tree.token_tree import IntArray

NONE = -1


class BranchSequences:
    """The slots of each sequence, by position.

    positions: [rows, capacity] position of each slot; for unwritten slots, the slot's number

    Invariant: a sequence has the cells of a single row at positions 0 to its length - 1, and each
    key was computed with exactly the cells before it.
    """

    def __init__(self, cells: Cells, rows: int, capacity: int) -> None:
        self._cells, sequences = cells, cells.sequences
        self.positions: IntArray = np.tile(np.arange(capacity, dtype=np.int32), (rows, 1))
        self._paths: IntArray = np.full((sequences, capacity), NONE, dtype=np.int32)
        self._lengths: IntArray = np.zeros(sequences, dtype=np.int32)
        self._rows: IntArray = np.full(sequences, NONE, dtype=np.int32)
        self._used: NDArray[np.int64] = np.zeros(sequences, dtype=np.int64)  # call of last use
        self._call = 0
        self._taken: set[int] = set()

    @property
    def room(self) -> int:
        """The number of sequences that a forward pass can always use, for branches and the paths
        above them.
        """
        return len(self._rows) - len(self.positions)

    def begin(self) -> None:
        """Begin a forward pass, in which no sequence has been taken yet."""
        self._call += 1
        self._taken.clear()

    def rewrite(self, row: int, slots: IntArray, positions: IntArray) -> None:
        """Assign new positions to slots; cut each sequence before the first slot it contains."""
        before, mine = self.positions[row, slots], np.flatnonzero(self._rows == row)
        same = (before < self._lengths[mine, None]) & (self._paths[np.ix_(mine, before)] == slots)
        first = np.where(same, before, self._paths.shape[1]).min(axis=1)
        for sequence, length in zip(mine.tolist(), first.tolist(), strict=True):
            self._cut(sequence, length)
        self.positions[row, slots] = positions

    def known(self, row: int, path: IntArray) -> int:
        """Return how many leading slots of a path have available keys, and mark them as used."""
        holder, length = self._holder(row, path)
        if holder != NONE:
            self._used[holder] = self._call
        return length

    def take(self, row: int, path: IntArray) -> int:
        """Take a sequence with exactly this path, whose keys must be available.

        Raises LimitExceeded if the forward pass has already taken all sequences.
        """
        holder, _ = self._holder(row, path)
        ends = self._lengths == len(path)
        if len(path) and holder != NONE:
            tips = self._paths[:, len(path) - 1] == path[-1]
            mine = np.flatnonzero((self._rows == row) & ends & tips)
            free = [sequence for sequence in mine.tolist() if sequence not in self._taken]
        else:
            free = []
        sequence = free[0] if free else self._forked(row, path, holder)
        self._taken.add(sequence)
        self._used[sequence] = self._call
        return sequence

    def extend(self, sequence: int, slots: IntArray) -> None:
        """Record that these slots were appended to a taken sequence."""
        length = int(self._lengths[sequence])
        self._paths[sequence, length : length + len(slots)] = slots
        self._lengths[sequence] += len(slots)

    def restore(self) -> None:
        """Remove everything that a failed forward pass may have written to taken sequences."""
        for sequence in self._taken:
            self._cells.remove(sequence, int(self._lengths[sequence]))

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy the first slots of row `source`, as far as its longest branch contains them."""
        self.begin()
        for sequence in np.flatnonzero(self._rows == target).tolist():
            self._cut(sequence, 0)
            self._rows[sequence] = NONE
        self.positions[target] = self.positions[source]
        mine = np.flatnonzero(self._rows == source)
        if not len(mine):
            return
        positions = np.arange(self._paths.shape[1])
        within = (self._paths[mine] < slots) & (positions < self._lengths[mine, None])
        lengths = np.where(within.all(axis=1), len(positions), within.argmin(axis=1))
        best = int(np.lexsort((self._used[mine], lengths))[-1])
        holder = int(mine[best])
        self._taken.add(holder)
        self._forked(target, self._paths[holder, : lengths[best]].copy(), holder)

    def _holder(self, row: int, path: IntArray) -> tuple[int, int]:
        """Return the sequence that has the most leading slots of the path, and their number."""
        mine, n = np.flatnonzero(self._rows == row), len(path)
        if not len(mine) or not n:
            return NONE, 0
        tips = mine[(self._lengths[mine] >= n) & (self._paths[mine, n - 1] == path[-1])]
        if len(tips) and np.array_equal(self._paths[tips[0], :n], path):
            return int(tips[0]), n
        same = (self._paths[mine, :n] == path) & (np.arange(n) < self._lengths[mine, None])
        lengths = np.where(same.all(axis=1), n, same.argmin(axis=1))
        best = int(lengths.argmax())
        return int(mine[best]), int(lengths[best])

    def _forked(self, row: int, path: IntArray, holder: int) -> int:
        """Change an unneeded sequence to this path, which the sequence `holder` contains."""
        sequence, shared = self._spare(row), 0
        if self._rows[sequence] == row:
            n = min(len(path), int(self._lengths[sequence]))
            differing = np.flatnonzero(self._paths[sequence, :n] != path[:n])
            shared = int(differing[0]) if len(differing) else n
        self._cut(sequence, shared)
        if shared < len(path):
            self._cells.copy(holder, sequence, shared, len(path))
        self._paths[sequence, : len(path)] = path
        self._lengths[sequence], self._rows[sequence] = len(path), row
        self._used[sequence] = self._call
        return sequence

    def _spare(self, row: int) -> int:
        """Return a sequence to overwrite: a redundant one, otherwise an unused one, otherwise the
        least recently used one that is not the last of its row.
        """
        if (sequence := self._doubled(row)) != NONE:
            return sequence
        unused = np.flatnonzero(self._rows == NONE)
        if len(unused):
            return int(unused[0])
        for owner in np.unique(self._rows).tolist():
            if (sequence := self._doubled(owner)) != NONE:
                return sequence
        branches = np.bincount(self._rows)[self._rows]
        old = [
            (self._used[sequence], sequence)
            for sequence in np.flatnonzero(branches > 1).tolist()
            if sequence not in self._taken
        ]
        if not old:
            raise LimitExceeded(f"a call needs more than {self.room} sequences of llama.cpp")
        return int(min(old)[1])

    def _doubled(self, row: int) -> int:
        """Return a sequence of the row that is not taken, and whose cells all belong to a second
        sequence, which inherits its time of last use. Returns NONE if there is none.
        """
        mine = np.flatnonzero(self._rows == row)
        lengths = self._lengths[mine]
        tips = self._paths[np.ix_(mine, np.maximum(lengths - 1, 0))]  # [m, m]: slots at each end
        holds = (tips == tips.diagonal()) & (lengths[:, None] >= lengths)
        for at in np.flatnonzero((holds.sum(axis=0) > 1) | (lengths == 0)).tolist():
            if (sequence := int(mine[at])) in self._taken:
                continue
            for heir in mine[holds[:, at] & (mine != sequence)][: int(lengths[at] > 0)].tolist():
                self._used[heir] = max(self._used[heir], self._used[sequence])
            return sequence
        return NONE

    def _cut(self, sequence: int, length: int) -> None:
        if self._lengths[sequence] > length:
            self._cells.remove(sequence, length)
            self._lengths[sequence] = length


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
        """Raise LimitExceeded for a segment that is too large even on its own."""
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
        """Yield each segment with the logits [p, V] at its picked nodes, in as few decodes as
        possible. The next iteration overwrites them. Segments have distinct rows.

        If this raises Unavailable, the slots of new nodes are empty, and other slots unchanged.
        """
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
