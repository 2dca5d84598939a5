"""Branches of a llama.cpp model with running states: Mamba, linear attention, convolutions.

llama.cpp has the state of a sequence's last token only. So a sequence here holds the first tokens
of a row's text, and a few of these sequences are stored. Each line of a tree is computed in a copy
of the longest one that its text begins with, and computes the later tokens again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.gguf.branches import LlamaContext
from inference.backends.gguf.library import MIN_BATCH, ContextSizes, TokenBatch
from inference.backends.libraries.host_choice import Floats
from inference.backends.libraries.kept_states import BEHIND, KEPT, begins, thinned
from inference.backends.libraries.tree_lines import lines_of, path_of
from inference.errors import Unavailable
from inference.tree.token_tree import IntArray

LINES = 4
"""Sequences for lines whose states are not stored."""


class _Beginning(NamedTuple):
    """The tokens [n] that a sequence holds, from a text's first on."""

    sequence: int
    tokens: IntArray


class _TextLine(NamedTuple):
    """A line of a tree that is still to be computed.

    nodes: [d] row and number of each, from the top down
    text: [n + d] all that its last node sees
    alone: whether it is its row's only one, whose end is kept
    """

    row: int
    nodes: list[tuple[int, int]]
    text: IntArray
    alone: bool

    @property
    def above(self) -> int:
        """The number of tokens above its nodes."""
        return len(self.text) - len(self.nodes)


class GgufStates:
    """Rows of texts in one llama.cpp context.

    context: of at least the sequences that sizes() says
    batch: most tokens of a decode
    """

    branches = False

    def __init__(self, context: LlamaContext, *, rows: int, capacity: int, batch: int) -> None:
        self.rows, self.capacity, self.batch = rows, capacity, batch
        self._context = context
        # A slot that was never written counts as written with position = slot.
        self._positions: IntArray = np.tile(np.arange(capacity, dtype=np.int32), (rows, 1))
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)
        self._kept = [list[_Beginning]() for _ in range(rows)]  # of each row, the shortest first
        self._forks: list[_Beginning | None] = [None] * rows  # where a row's last branches began
        self._free = list(range(context.sequences))

    @staticmethod
    def most_rows(sequences: int) -> int:
        """Return the rows that so many sequences serve, with what each keeps and a call's lines."""
        return (sequences - LINES) // (KEPT + 1)

    @staticmethod
    def sizes(rows: int, capacity: int, max_nodes: int, sequences: int) -> ContextSizes:
        """Return the sizes of a context, which may have so many sequences. Each has a state."""
        needed = min(rows * (KEPT + 1) + LINES, sequences)
        # What lines compute again has keys of its own in each sequence.
        cells = rows * capacity + needed * (max_nodes + BEHIND)
        return ContextSizes(cells, max(MIN_BATCH, max_nodes) + BEHIND, needed)

    def check(self, segment: Segment) -> None:
        """Accept every segment: lines that fit into no decode are computed by several."""

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._positions[target] = self._positions[source]
        self._tokens[target] = self._tokens[source]
        self._keep(target, ())
        self._keep(target, [self._copied(beginning) for beginning in self._kept[source]])

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """Compute segments by as few decodes as hold their lines."""
        waiting = deque(chain.from_iterable(map(self._lines, segments)))
        found = dict[tuple[int, int], Floats]()
        wanted = {(segment.row, node) for segment in segments for node in segment.pick.tolist()}
        while waiting:
            self._decode(self._group(waiting), wanted, found)
        for segment in segments:
            nodes = segment.pick.tolist()
            yield segment, np.stack([found[segment.row, node] for node in nodes])

    def _lines(self, segment: Segment) -> list[_TextLine]:
        """Return a segment's lines. Its row keeps the sequences that a line begins with, no others.

        They end where all nodes see them, or a few tokens above. Raises Unavailable.
        """
        row, ids, positions = segment.row, self._tokens[segment.row], self._positions[segment.row]
        positions[segment.slots], ids[segment.slots] = segment.positions, segment.tokens
        parts = list(lines_of(segment, positions))
        texts = [ids[np.concatenate((path, segment.slots[nodes]))] for nodes, path in parts]
        kept = [each for each in self._kept[row] if any(begins(each, text) for text in texts)]
        self._keep(row, kept)
        common = ids[path_of(positions, np.logical_and.reduce(segment.context))]
        if len(common) - self._known(row, common, len(common)) > BEHIND:
            sequence, _ = self._begin(row, common, len(common), left=0)
            # Longer ones have keys of their own for what was computed now.
            shorter = [each for each in self._kept[row] if len(each.tokens) < len(common)]
            self._keep(row, [*shorter, _Beginning(sequence, common)])
        if len(parts) > 1:
            self._forks[row] = self._longest(row, common, len(common))
        return [
            _TextLine(row, [(row, node) for node in nodes.tolist()], text, alone=len(parts) == 1)
            for (nodes, _), text in zip(parts, texts, strict=True)
        ]

    def _group(self, waiting: deque[_TextLine]) -> list[_TextLine]:
        """Take lines that fit into one decode, or one that needs several."""
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
        wanted: set[tuple[int, int]],
        found: dict[tuple[int, int], Floats],
    ) -> None:
        """Compute lines, and move their nodes from `wanted` to `found`."""
        sequences, parts, asked = list[int](), list[TokenBatch](), list[tuple[int, int]]()
        try:
            for line in group:
                sequence, known = self._begin(line.row, line.text, line.above, left=self.batch)
                sequences.append(sequence)
                picked = np.zeros(len(line.text), dtype=np.bool_)
                picked[line.above :] = [node in wanted for node in line.nodes]
                parts.append(_part(sequence, line.text, slice(known, None), picked))
                asked += [node for node in line.nodes if node in wanted]
                wanted.difference_update(line.nodes)
            logits = self._context.decode(TokenBatch.together(parts))
        except Unavailable:
            self._release(sequences)
            raise
        found.update(zip(asked, logits.copy(), strict=True))  # the next call overwrites them
        for line, sequence in zip(group, sequences, strict=True):
            if line.alone:
                self._keep(line.row, [*self._kept[line.row], _Beginning(sequence, line.text)])
            else:
                self._release([sequence])

    def _begin(self, row: int, text: IntArray, most: int, left: int) -> tuple[int, int]:
        """Let a free sequence hold the first tokens of a row's text; return it and how many.

        It begins as a copy of the longest kept one of up to `most` tokens, and computes the rest
        but for `left` tokens. Raises Unavailable.
        """
        start = self._longest(row, text, most)
        sequence = self._free.pop() if start is None else self._copied(start).sequence
        known = 0 if start is None else len(start.tokens)
        none = np.zeros(len(text), dtype=np.bool_)
        try:
            while len(text) - known > left:
                end = min(known + self.batch, len(text) - left)
                self._context.decode(_part(sequence, text, slice(known, end), none))
                known = end
        except Unavailable:
            self._release([sequence])
            raise
        return sequence, known

    def _copied(self, kept: _Beginning) -> _Beginning:
        sequence = self._free.pop()
        self._context.copy(kept.sequence, sequence, 0, len(kept.tokens))
        return kept._replace(sequence=sequence)

    def _longest(self, row: int, text: IntArray, most: int) -> _Beginning | None:
        """Return the longest that the row keeps of a text, of up to `most` tokens.

        What other rows keep is not used: else a row could hold keys of several rows' texts, and
        the time of a call would tell a tenant about another tenant's text.
        """
        held = [each for each in self._kept[row] if len(each.tokens) <= most and begins(each, text)]
        return held[-1] if held else None

    def _known(self, row: int, text: IntArray, most: int) -> int:
        start = self._longest(row, text, most)
        return 0 if start is None else len(start.tokens)

    def _keep(self, row: int, texts: Sequence[_Beginning]) -> None:
        """Store the best of these sequences for a row, and release its others."""
        before = {each.sequence for each in (*self._kept[row], *texts)}
        held = sorted(texts, key=lambda each: len(each.tokens))
        self._kept[row] = thinned(held, self._forks[row])
        self._release(before - {each.sequence for each in self._kept[row]})

    def _release(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._context.remove(sequence, 0)
            self._free.append(sequence)


def _part(sequence: int, text: IntArray, part: slice, picked: NDArray[np.bool_]) -> TokenBatch:
    """Return a part of a text as a decode of one sequence. picked: [n] of the whole text"""
    at = np.arange(len(text), dtype=np.int32)[part]
    return TokenBatch(text[part], at, [[sequence]] * len(at), picked[part])
