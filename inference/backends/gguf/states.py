"""Trees of a llama.cpp model with running states: Mamba, linear attention, convolutions.

llama.cpp has only the state after a sequence's last token. So each row stores several sequences
with prefixes of its tokens, and each line of a tree is computed in a copy of the longest matching
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.gguf.library import MIN_BATCH, ContextSizes, LlamaContext, TokenBatch
from inference.backends.libraries.host_choice import Floats
from inference.backends.libraries.tree_lines import BEHIND, KEPT, begins, lines_of, path_of, thinned
from inference.errors import Unavailable
from inference.tree.token_tree import IntArray

LINES = 4
"""Number of sequences for lines whose states are not stored."""


class _Prefix(NamedTuple):
    """A llama.cpp sequence with the first tokens [n] of a row."""

    sequence: int
    tokens: IntArray


class _TextLine(NamedTuple):
    """A line of a tree to compute.

    nodes: [d] row and node number, from the top down
    text: [n + d] all tokens that its last node sees
    alone: whether it is the only line of its row; the state after it is then stored
    """

    row: int
    nodes: list[tuple[int, int]]
    text: IntArray
    alone: bool

    @property
    def above(self) -> int:
        """The number of tokens above the nodes."""
        return len(self.text) - len(self.nodes)


class GgufStates:
    """The rows of a model in a llama.cpp context.

    context: has at least the number of sequences in sizes()
    batch: maximum tokens per decode
    """

    branches = False

    def __init__(self, context: LlamaContext, *, rows: int, capacity: int, batch: int) -> None:
        self.rows, self.capacity, self.batch = rows, capacity, batch
        self._context = context
        # The position of an unwritten slot is the slot's number.
        self._positions: IntArray = np.tile(np.arange(capacity, dtype=np.int32), (rows, 1))
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)
        self._kept = [list[_Prefix]() for _ in range(rows)]  # by row, shortest prefix first
        self._forks: list[_Prefix | None] = [None] * rows  # where a row's last tree branched
        self._free = list(range(context.sequences))

    @staticmethod
    def max_rows(sequences: int) -> int:
        """Return the maximum rows for a number of sequences, of which lines need some."""
        return (sequences - LINES) // (KEPT + 1)

    @staticmethod
    def sizes(rows: int, capacity: int, max_nodes: int, sequences: int) -> ContextSizes:
        """Return the sizes of a context with up to `sequences` sequences, each with a state."""
        needed = min(rows * (KEPT + 1) + LINES, sequences)
        # Each sequence has separate keys for recomputed tokens.
        cells = rows * capacity + needed * (max_nodes + BEHIND)
        return ContextSizes(cells, max(MIN_BATCH, max_nodes) + BEHIND, needed)

    def check(self, segment: Segment) -> None:
        """Accept every segment: long lines are computed by several decodes."""

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._positions[target] = self._positions[source]
        self._tokens[target] = self._tokens[source]
        self._keep(target, ())
        self._keep(target, [self._copied(prefix) for prefix in self._kept[source]])

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """See GgufTrees.logits()."""
        waiting = deque(chain.from_iterable(map(self._lines, segments)))
        results = dict[tuple[int, int], Floats]()
        pending = {(segment.row, node) for segment in segments for node in segment.pick.tolist()}
        while waiting:
            self._decode(self._group(waiting), pending, results)
        for segment in segments:
            nodes = segment.pick.tolist()
            yield segment, np.stack([results[segment.row, node] for node in nodes])

    def _lines(self, segment: Segment) -> list[_TextLine]:
        """Return the lines of a segment. Its row keeps only prefixes of these lines, and gets a
        prefix that ends at most a few tokens above the new nodes. Raises Unavailable.
        """
        row, ids, positions = segment.row, self._tokens[segment.row], self._positions[segment.row]
        positions[segment.slots], ids[segment.slots] = segment.positions, segment.tokens
        lines = list(lines_of(segment, positions))
        texts = [ids[np.concatenate((path, segment.slots[nodes]))] for nodes, path in lines]
        usable = [
            prefix for prefix in self._kept[row] if any(begins(prefix, text) for text in texts)
        ]
        self._keep(row, usable)
        common = ids[path_of(positions, np.logical_and.reduce(segment.context))]
        if len(common) - self._known(row, common, len(common)) > BEHIND:
            sequence, _ = self._begin(row, common, len(common), rest=0)
            # Longer prefixes have separate keys for the same tokens.
            shorter = [prefix for prefix in self._kept[row] if len(prefix.tokens) < len(common)]
            self._keep(row, [*shorter, _Prefix(sequence, common)])
        if len(lines) > 1:
            self._forks[row] = self._longest(row, common, len(common))
        return [
            _TextLine(row, [(row, node) for node in nodes.tolist()], text, alone=len(lines) == 1)
            for (nodes, _), text in zip(lines, texts, strict=True)
        ]

    def _group(self, waiting: deque[_TextLine]) -> list[_TextLine]:
        """Take as many lines as fit into a decode, or a single line that needs several decodes."""
        group, tokens = list[_TextLine](), 0
        while waiting and len(group) < len(self._free):
            line = waiting[0]
            tokens += len(line.text) - self._known(line.row, line.text, line.above)
            if group and tokens > self.batch:
                break
            group.append(waiting.popleft())
        return group

    def _decode(
        self,
        group: Sequence[_TextLine],
        pending: set[tuple[int, int]],
        results: dict[tuple[int, int], Floats],
    ) -> None:
        """Compute lines, and move their nodes from `pending` to `results`."""
        sequences, batches, nodes = list[int](), list[TokenBatch](), list[tuple[int, int]]()
        try:
            for line in group:
                sequence, length = self._begin(line.row, line.text, line.above, rest=self.batch)
                sequences.append(sequence)
                picked = np.zeros(len(line.text), dtype=np.bool_)
                picked[line.above :] = [node in pending for node in line.nodes]
                batches.append(_part(sequence, line.text, slice(length, None), picked))
                nodes += [node for node in line.nodes if node in pending]
                pending.difference_update(line.nodes)
            logits = self._context.decode(TokenBatch.together(batches))
        except Unavailable:
            self._release(sequences)
            raise
        results.update(zip(nodes, logits.copy(), strict=True))  # the next call overwrites them
        for line, sequence in zip(group, sequences, strict=True):
            if line.alone:
                self._keep(line.row, [*self._kept[line.row], _Prefix(sequence, line.text)])
            else:
                self._release([sequence])

    def _begin(self, row: int, text: IntArray, limit: int, rest: int) -> tuple[int, int]:
        """Copy the longest prefix of up to `limit` tokens to a free sequence, and compute the
        tokens that follow, except the last `rest`. Returns the sequence and its length. Raises
        Unavailable.
        """
        start = self._longest(row, text, limit)
        sequence = self._free.pop() if start is None else self._copied(start).sequence
        length = 0 if start is None else len(start.tokens)
        none = np.zeros(len(text), dtype=np.bool_)
        try:
            while len(text) - length > rest:
                end = min(length + self.batch, len(text) - rest)
                self._context.decode(_part(sequence, text, slice(length, end), none))
                length = end
        except Unavailable:
            self._release([sequence])
            raise
        return sequence, length

    def _copied(self, prefix: _Prefix) -> _Prefix:
        sequence = self._free.pop()
        self._context.copy(prefix.sequence, sequence, 0, len(prefix.tokens))
        return prefix._replace(sequence=sequence)

    def _longest(self, row: int, text: IntArray, limit: int) -> _Prefix | None:
        """Return the row's longest stored prefix of the text, of up to `limit` tokens.

        Prefixes of other rows are not used: a row could then have keys of several sessions, and
        timing would reveal the tokens of other tenants.
        """
        usable = [
            prefix
            for prefix in self._kept[row]
            if len(prefix.tokens) <= limit and begins(prefix, text)
        ]
        return usable[-1] if usable else None

    def _known(self, row: int, text: IntArray, limit: int) -> int:
        start = self._longest(row, text, limit)
        return 0 if start is None else len(start.tokens)

    def _keep(self, row: int, texts: Sequence[_Prefix]) -> None:
        """Store the most useful of these prefixes for a row, and release the row's others."""
        before = {prefix.sequence for prefix in (*self._kept[row], *texts)}
        ordered = sorted(texts, key=lambda prefix: len(prefix.tokens))
        self._kept[row] = thinned(ordered, self._forks[row])
        self._release(before - {prefix.sequence for prefix in self._kept[row]})

    def _release(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._context.remove(sequence, 0)
            self._free.append(sequence)


def _part(sequence: int, text: IntArray, section: slice, picked: NDArray[np.bool_]) -> TokenBatch:
    """Return a section of `text` as a batch of one sequence. picked: [n] for the whole `text`"""
    at = np.arange(len(text), dtype=np.int32)[section]
    return TokenBatch(text[section], at, [[sequence]] * len(at), picked[section])
