"""The sequence of a draft that reads its target's KV cache: it computes no committed token.

The target's row holds the keys of every committed token but the last, the root. So the draft has no
prompt to prefill, and its own slots hold candidates only, from the root on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inference.backends import Model, Segment, Shared
from inference.backends.sequence import ModelSequence
from inference.backends.slots import Slots
from inference.sampling import SamplingParams
from inference.tree import TreeNodes


class TargetRow(NamedTuple):
    """Where the target has a session's keys."""

    row: int
    slots: Slots


class SharedSequence(ModelSequence):
    """A ModelSequence whose committed tokens lie in a row of the target.

    Calls are made between forwards of the target, when all that it has committed was heard.

    target: the session's row, at the time of a call
    own: the draft's slots in a row
    """

    def __init__(
        self,
        model: Model,
        row: int,
        params: SamplingParams,
        *,
        target: Callable[[], TargetRow],
        own: int,
    ) -> None:
        super().__init__(model, row, params, Slots(own))
        self._target = target
        self.cached = self._committed

    def extend(self, tokens: Sequence[int]) -> None:
        """Commit tokens, whose keys the target has."""
        self.cached += len(tokens)

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        target = self._target()
        assert self.cached == self._committed, "the target's row is of another length"
        seen = target.slots.committed[: target.slots.high_water].copy()
        return super().prepare_nodes(tree, nodes)._replace(shared=Shared(target.row, seen))

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it: the target has their keys, the draft's are freed."""
        self.slots.release([self._node_slots.pop(node) for node in (*nodes, *gone)])
        self.cached += len(tokens)

    @property
    def _committed(self) -> int:
        return int(self._target().slots.committed.sum())
