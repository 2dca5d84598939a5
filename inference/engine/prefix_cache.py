"""The rows of a target's KV cache, and the prefix cache in the rows that no session holds.

A later session of the same sharing group that begins with the same tokens reuses a row's keys, or
copies them if a session still holds the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model
from inference.backends.sequence import Slots
from inference.tree.token_tree import IntArray

WORTH_COPYING = 16
"""Minimum tokens of a prefix for which another row's keys are copied instead of computed.

On a CPU a copy takes 0.3 % of the computing time for 16 tokens and 0.1 % for 1,000. On other
devices a copy is a separate call, which does not pay for a few tokens.
"""


class CacheRow:
    """A row of the KV cache. tokens: by position, the tokens whose keys are in committed slots."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.slots = Slots(capacity)
        self.tokens: list[int] = []
        self.sharing = ""  # name of the group that may reuse its keys
        self.return_number = 0  # serial number of its release; the lowest is the longest unused
        self.in_use = False  # whether a session holds the row

    def keep(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        self.slots.trim(length)
        del self.tokens[length:]


class RowPool:
    """All rows of a model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._rows = [CacheRow(index, model.capacity) for index in range(model.rows)]
        self._returns = 0

    @property
    def free(self) -> int:
        """Rows that no session holds."""
        return sum(not row.in_use for row in self._rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens cached in rows that no session holds."""
        return sum(len(row.tokens) for row in self._rows if not row.in_use)

    @property
    def slots(self) -> list[Slots]:
        """The slots of each row; read-only."""
        return [row.slots for row in self._rows]

    def take(self, tokens: Sequence[int], sharing: str) -> CacheRow | None:
        """Take a free row for a sequence, with the longest cached prefix of its tokens.

        Return None if all rows are in use.
        """
        free = [row for row in self._rows if not row.in_use]
        if not free:
            return None
        prefix = np.asarray(tokens[:-1], dtype=np.int32)
        shared = {
            row.index: common_prefix(row.tokens, prefix)
            for row in self._rows
            if row.sharing == sharing and row.tokens
        }
        source = max(self._rows, key=lambda row: (shared.get(row.index, 0), not row.in_use))
        length = shared.get(source.index, 0)
        oldest = min(free, key=lambda row: (bool(row.tokens), row.return_number))
        row = oldest
        expendable = source is oldest or 2 * length >= len(source.tokens)
        if length and expendable and not source.in_use:
            row = source
        elif length >= WORTH_COPYING and row is not source:
            self._copy(source, row)
        else:
            length = 0
        row.keep(length)
        row.in_use, row.sharing = True, sharing
        return row

    def release(self, row: CacheRow) -> None:
        """Release a row, which keeps its tokens until another session takes it."""
        row.keep(len(row.tokens))
        self._returns += 1
        row.in_use, row.return_number = False, self._returns

    def _copy(self, source: CacheRow, target: CacheRow) -> None:
        """Copy a row's keys to the same slots of another row, and mark the committed slots."""
        target.slots = source.slots.committed_copy()
        target.tokens = list(source.tokens)
        self._model.copy_row(source.index, target.index, source.slots.high_water)


def common_prefix(cached: Sequence[int] | IntArray, tokens: NDArray[np.integer]) -> int:
    """Length of the common prefix of two token sequences. wanted: [n]"""
    n = min(len(cached), len(tokens))
    if not n or cached[0] != tokens[0]:
        return 0
    differing = np.flatnonzero(np.asarray(cached[:n]) != tokens[:n])
    return int(differing[0]) if differing.size else n
