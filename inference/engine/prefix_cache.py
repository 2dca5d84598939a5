"""The rows of a target's KV cache: who holds one, and what the others still remember.

A row that is given back keeps its keys, so a later session that begins with the same tokens starts
from them. A prefix that lies in a row somebody uses is copied, where the model copies rows. Only
rows of those who share theirs are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.backends import Model
from inference.backends.slots import Slots

WORTH_COPYING = 16
"""Tokens from which another row's keys are copied instead of computed anew. On a CPU that takes 0.3
% of the time for 16 tokens and 0.1 % for 1,000 (`python -m benchmarks.prefix`). Elsewhere a copy is
a call of its own, and a few tokens would hardly save one.
"""


class Row:
    """One row. `tokens` are those whose keys its committed slots hold, position by position."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.slots = Slots(capacity)
        self.tokens: list[int] = []
        self.sharing = ""  # name of those who may start from it
        self.given_back = 0  # order of being given back; the least is the longest unused
        self.held = False

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.slots.trim(length)
        del self.tokens[length:]


class RowPool:
    """All rows of a model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._rows = [Row(index, model.capacity) for index in range(model.rows)]
        self._returns = 0

    @property
    def free(self) -> int:
        """Rows that nobody holds."""
        return sum(not row.held for row in self._rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens remembered by rows that nobody holds."""
        return sum(len(row.tokens) for row in self._rows if not row.held)

    def take(self, tokens: Sequence[int], sharing: str) -> Row | None:
        """A row for a sequence of these tokens, holding as long a prefix of them as any row has;
        None when all are held.
        """
        free = [row for row in self._rows if not row.held]
        if not free:
            return None
        wanted = np.asarray(tokens[:-1], dtype=np.int64)
        shared = {
            row.index: common_prefix(row.tokens, wanted)
            for row in self._rows
            if row.sharing == sharing and row.tokens
        }
        source = max(self._rows, key=lambda row: (shared.get(row.index, 0), not row.held))
        length = shared.get(source.index, 0)
        oldest = min(free, key=lambda row: (bool(row.tokens), row.given_back))
        copies = self._model.copies_rows
        if (
            not source.held
            and length
            and (source is oldest or not copies or 2 * length >= len(source.tokens))
        ):
            row = source
        else:
            row = oldest
            if copies and length >= WORTH_COPYING and row is not source:
                self._copy(source, row)
            else:
                length = 0
        row.keep(length)
        row.held, row.sharing = True, sharing
        return row

    def give_back(self, row: Row) -> None:
        """The row keeps its tokens until another session needs it."""
        row.keep(len(row.tokens))
        self._returns += 1
        row.held, row.given_back = False, self._returns

    def _copy(self, source: Row, target: Row) -> None:
        """All keys of a row, at its slots; those of a tree under way are copied and not marked."""
        target.slots = source.slots.committed_copy()
        target.tokens = list(source.tokens)
        self._model.copy_row(source.index, target.index, source.slots.high_water)


def common_prefix(held: Sequence[int], wanted: np.ndarray) -> int:
    """How many first tokens are the same."""
    n = min(len(held), len(wanted))
    if not n or held[0] != wanted[0]:
        return 0
    differing = np.flatnonzero(np.asarray(held[:n], dtype=np.int64) != wanted[:n])
    return int(differing[0]) if differing.size else n
