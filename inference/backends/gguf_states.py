"""Lines of a llama.cpp model that keeps running states: Mamba, linear attention, convolutions.

llama.cpp keeps the state behind a sequence's last token alone. So a sequence here holds the first
tokens of a row's text, and a few of those are kept. Each line of a tree is computed in a copy of
the longest one that its text begins with, and computes the tokens behind that again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.gguf_branches import LlamaContext
from inference.backends.gguf_library import TokenBatch
from inference.backends.host_choice import Floats
from inference.backends.kept_states import BEHIND, KEPT, begins, thinned
from inference.backends.tree_lines import lines_of, path_of
from inference.errors import LimitExceeded, Unavailable
from inference.tree import IntArray

LINES = 4
"""Sequences for lines that do not become what a row keeps."""


def sequences_for(rows: int) -> int:
    """Return the sequences that so many rows need: what they keep, and a call's lines."""
    return rows * (KEPT + 1) + LINES


def check_rows_of_states(rows: int, sequences: int) -> None:
    """Raise LimitExceeded where so many sequences serve fewer rows."""
    if sequences_for(rows) > sequences:
        most = (sequences - LINES) // (KEPT + 1)
        raise LimitExceeded(f"{rows} rows: this GGUF model takes up to {most}")


_Node: TypeAlias = tuple[int, int]
"""A row and a new node of its segment."""


class _Text(NamedTuple):
    """The tokens [n] that a sequence holds, from a text's first on."""

    sequence: int
    tokens: IntArray


class _Line(NamedTuple):
    """A line of a tree that is still to be computed.

    nodes: [d] from the top down
    text: [n + d] all that its last node sees
    alone: whether it is its row's only one, whose end is kept
    """

    row: int
    nodes: NDArray[np.intp]
    text: IntArray
    alone: bool

    @property
    def above(self) -> int:
        """The number of tokens above its nodes."""
        return len(self.text) - len(self.nodes)


_NOTHING = _Text(-1, np.empty(0, dtype=np.int32))


class GgufStates:
    """Rows of texts in one llama.cpp context.

    context: of sequences_for(rows) sequences
    batch: most tokens of a decode
    """

    def __init__(self, context: LlamaContext, *, rows: int, capacity: int, batch: int) -> None:
        self.rows, self.capacity, self.batch = rows, capacity, batch
        self._context = context
        # A slot that was never written counts as written with position = slot.
        self._positions: IntArray = np.tile(np.arange(capacity, dtype=np.int32), (rows, 1))
        self._tokens: IntArray = np.zeros((rows, capacity), dtype=np.int32)
        self._kept = [list[_Text]() for _ in range(rows)]  # of each row, the shortest first
        self._free = list(range(sequences_for(rows)))

    def check(self, segment: Segment) -> None:
        """Accept every segment: lines that fit into no decode are computed by several."""

    def copy_row(self, source: int, target: int, slots: int) -> None:
        # What any row keeps of a text, all rows begin from.
        self._positions[target] = self._positions[source]
        self._tokens[target] = self._tokens[source]

    def logits(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, Floats]]:
        """Compute segments by as few decodes as hold their lines."""
        for segment in segments:
            self._positions[segment.row, segment.slots] = segment.positions
            self._tokens[segment.row, segment.slots] = segment.tokens
        waiting = deque(chain.from_iterable(map(self._lines, segments)))
        for segment in segments:
            self._advance(segment)
        found = dict[_Node, Floats]()
        wanted = {(one.row, node) for one in segments for node in one.pick.tolist()}
        while waiting:
            self._decode(self._group(waiting), wanted, found)
        for one in segments:
            yield one, np.stack([found[one.row, node] for node in one.pick.tolist()])

    def _lines(self, segment: Segment) -> list[_Line]:
        """Return a segment's lines. Its row keeps only what one of them begins with."""
        row, ids = segment.row, self._tokens[segment.row]
        parts = list(lines_of(segment, self._positions[row]))
        texts = [ids[np.concatenate((path, segment.slots[nodes]))] for nodes, path in parts]
        kept = self._kept[row]
        self._keep(row, [one for one in kept if any(begins(one, text) for text in texts)])
        return [
            _Line(row, nodes, text, alone=len(parts) == 1)
            for (nodes, _), text in zip(parts, texts, strict=True)
        ]

    def _advance(self, segment: Segment) -> None:
        """Let a row keep a text that ends where all nodes of a segment see it, or not far above."""
        row, common = segment.row, np.logical_and.reduce(segment.context)
        text = self._tokens[row, path_of(self._positions[row], common)]
        if len(text) - len(self._longest(text, len(text)).tokens) <= BEHIND:
            return
        sequence = self._free.pop()
        try:
            self._begin(sequence, text, len(text), left=0)
        except Unavailable:
            self._release([sequence])
            raise
        self._keep(row, [*self._kept[row], _Text(sequence, text)])

    def _group(self, waiting: deque[_Line]) -> list[_Line]:
        """Take lines that fit into one decode, or one that needs several."""
        group, tokens = list[_Line](), 0
        while waiting and len(group) < len(self._free):
            line = waiting[0]
            tokens += len(line.text) - len(self._longest(line.text, line.above).tokens)
            if group and tokens > self.batch:
                break
            group.append(waiting.popleft())
        return group

    def _decode(
        self, group: Sequence[_Line], wanted: set[_Node], found: dict[_Node, Floats]
    ) -> None:
        """Compute lines, and move their nodes from those that are wanted to those found."""
        sequences, parts, asked = list[int](), list[TokenBatch](), list[_Node]()
        try:
            for line in group:
                sequences.append(self._free.pop())
                known = self._begin(sequences[-1], line.text, line.above, left=self.batch)
                nodes = [(line.row, node) for node in line.nodes.tolist()]
                picked = np.zeros(len(line.text), dtype=np.bool_)
                picked[line.above :] = [node in wanted for node in nodes]
                parts.append(_part(sequences[-1], line.text, slice(known, None), picked))
                asked += [node for node in nodes if node in wanted]
                wanted.difference_update(nodes)
            logits = self._context.decode(_together(parts))
        except Unavailable:
            self._release(sequences)
            raise
        found.update(zip(asked, logits.copy(), strict=True))  # the next call overwrites them
        self._release(one for line, one in zip(group, sequences, strict=True) if not line.alone)
        for line, sequence in zip(group, sequences, strict=True):
            if line.alone:
                self._keep(line.row, [*self._kept[line.row], _Text(sequence, line.text)])

    def _begin(self, sequence: int, text: IntArray, most: int, left: int) -> int:
        """Let an empty sequence hold a text's first tokens; return how many.

        It begins as a copy of the longest kept one of at most `most` tokens, and computes the rest
        but for `left` tokens. Raises Unavailable.
        """
        start = self._longest(text, most)
        known = len(start.tokens)
        if known:
            self._context.copy(start.sequence, sequence, 0, known)
        while len(text) - known > left:
            end = min(known + self.batch, len(text) - left)
            none = np.zeros(len(text), dtype=np.bool_)
            self._context.decode(_part(sequence, text, slice(known, end), none))
            known = end
        return known

    def _longest(self, text: IntArray, most: int) -> _Text:
        """Return the longest text of any row that a text begins with, of at most `most` tokens."""
        held = [one for one in chain.from_iterable(self._kept) if len(one.tokens) <= most]
        begun = (one for one in held if begins(one, text))
        return max(begun, key=lambda one: len(one.tokens), default=_NOTHING)

    def _keep(self, row: int, texts: Sequence[_Text]) -> None:
        """Let a row keep the best of these texts, and nothing else."""
        before = {one.sequence for one in (*self._kept[row], *texts)}
        self._kept[row] = thinned(sorted(texts, key=lambda one: len(one.tokens)))
        self._release(before - {one.sequence for one in self._kept[row]})

    def _release(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._context.remove(sequence, 0)
            self._free.append(sequence)


def _part(sequence: int, text: IntArray, part: slice, picked: NDArray[np.bool_]) -> TokenBatch:
    """A part of a text as a decode of one sequence. picked: [n] of the whole text"""
    at = np.arange(len(text), dtype=np.int32)[part]
    return TokenBatch(text[part], at, [[sequence]] * len(at), picked[part])


def _together(parts: Sequence[TokenBatch]) -> TokenBatch:
    tokens, positions, sequences, picked = zip(*parts, strict=True)
    return TokenBatch(
        np.concatenate(tokens),
        np.concatenate(positions),
        list(chain.from_iterable(sequences)),
        np.concatenate(picked),
    )
