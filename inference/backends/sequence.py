"""A sequence on a row of a model: its committed tokens, their KV slots, and attention masks.

Keys are stored with their rotary position applied, so any slot can hold any position, and keys
never move. The cache contains all committed tokens but the last, the root of the next tree.
Committed tokens without keys (such as an accepted, unexpanded leaf) are *pending*: the next forward
pass computes them as a chain above the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked, Segment
from inference.errors import LimitExceeded
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree, TreeNodes, sight

FREE = -1


class Slots:
    """`capacity` slots, each of which is free, provisional (for a node of a tree) or committed.

    positions: [capacity] current or last position of each slot, or FREE
    committed: [capacity] whether the slot is committed
    high_water: number of the highest slot in use, plus one
    """

    def __init__(self, capacity: int) -> None:
        self.positions: IntArray = np.full(capacity, FREE, dtype=np.int32)
        self.committed: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.high_water = 0
        self._holes: list[int] = []  # free slots below high_water, ascending
        self._provisional: set[int] = set()

    @property
    def used(self) -> int:
        """The number of slots in use."""
        return self.high_water - len(self._holes)

    def take(self, positions: IntArray) -> IntArray:
        """Reserve the lowest free slots provisionally for positions [n]. Returns the slots [n].

        Raises LimitExceeded if too few are free.
        """
        needed, holes, high = len(positions), self._holes, self.high_water
        fresh = max(needed - len(holes), 0)
        if high + fresh > len(self.positions):
            raise LimitExceeded(
                f"the row is full: {needed} slots needed, "
                f"{len(holes) + len(self.positions) - high} of {len(self.positions)} free"
            )
        chosen = [*holes[:needed], *range(high, high + fresh)]
        del holes[:needed]
        self.high_water = high + fresh
        before = len(self._provisional)
        self._provisional.update(chosen)
        assert len(self._provisional) == before + needed, "a slot was taken twice"
        slots = np.array(chosen, dtype=np.int32)
        assert not self.committed[slots].any(), "a slot in use was taken"
        self.positions[slots] = positions
        return slots

    def keep(self, slots: Iterable[int]) -> None:
        """Commit some provisional slots; the others stay provisional."""
        committed, provisional = self.committed, self._provisional
        for slot in slots:
            committed[slot] = True
            provisional.discard(slot)

    def commit(self, slots: Iterable[int]) -> None:
        """Commit some provisional slots, and free all other provisional slots."""
        self.keep(slots)
        self._free(self._provisional)
        self._provisional = set()

    def release(self, slots: Sequence[int]) -> None:
        """Free some provisional slots."""
        self._provisional.difference_update(slots)
        self._free(slots)

    def trim(self, length: int) -> None:
        """Free all slots with position `length` or later, and all provisional slots."""
        self.committed &= self.positions < length
        self._free_uncommitted()

    def at(self, positions: IntArray) -> IntArray:
        """Return the slots [n] of committed tokens at positions [n].

        All positions below the highest committed position must be committed.
        """
        committed = self.committed.nonzero()[0]
        slots = np.empty(len(committed), dtype=np.int32)
        slots[self.positions[committed]] = committed
        return slots[positions]

    def committed_copy(self) -> Slots:
        """Return a copy in which provisional slots are free."""
        copy = Slots(len(self.positions))
        copy.positions[:], copy.committed[:] = self.positions, self.committed
        copy._free_uncommitted()
        return copy

    def _free(self, slots: Iterable[int]) -> None:
        holes, high = self._holes, self.high_water
        holes += slots
        holes.sort()
        while holes and holes[-1] == high - 1:
            holes.pop()
            high -= 1
        self.high_water = high

    def _free_uncommitted(self) -> None:
        self.high_water = self.committed.tobytes().rfind(True) + 1  # faster than numpy
        self._holes = (~self.committed[: self.high_water]).nonzero()[0].tolist()
        self._provisional = set()


class ModelSequence:
    """The state of a row of `model` between forward passes.

    slots: the row's KV slots, which may already contain a cached prefix
    """

    def __init__(
        self, model: Model, row: int, params: SamplingParams, slots: Slots | None = None
    ) -> None:
        self.model, self.row, self._params = model, row, params
        self.slots = Slots(model.capacity) if slots is None else slots
        self.cached = int(self.slots.committed.sum())  # number of tokens whose keys are committed
        self._pending: list[int] = []
        self._node_slots: dict[int, int] = {}  # evaluated node of the current tree -> slot

    @property
    def length(self) -> int:
        """The number of committed tokens before the root, cached or pending."""
        return self.cached + len(self._pending)

    def extend(self, tokens: Sequence[int]) -> None:
        """Prefill and commit tokens: of a prompt, all but the last, which is the first root."""
        for start in range(0, len(tokens), self.model.max_nodes):
            self._feed(tokens[start : start + self.model.max_nodes])

    def choose(self, tree: TokenTree) -> IntArray:  # [n]
        """Evaluate a tree; return the token chosen at each node.

        Keys of the nodes are provisional until commit(). Raises LimitExceeded without free slots.
        """
        return self.model.choose([self.prepare(tree)])[0].tokens

    def prepare(self, tree: TokenTree) -> Segment:
        """Return this row's segment of a forward pass that chooses a token at every node.

        The caller runs the forward pass and then commits the accepted nodes. Raises LimitExceeded
        without free slots.
        """
        self.abandon()
        if self._pending:
            return self._segment(tree, range(len(tree)))
        context = self.slots.committed[None, : self.slots.high_water].copy()
        positions = self.cached + tree.depths
        slots = self.slots.take(positions)
        self._node_slots = dict(enumerate(slots.tolist()))
        pick = np.arange(len(tree), dtype=np.int32)
        mask = tree.mask
        return Segment(self.row, tree.tokens, slots, positions, context, mask, pick, self._params)

    def prepare_chunk(self, chain: TokenTree) -> Segment:
        """Return this row's segment of a forward pass that prefills prompt tokens.

        The caller commits all of these tokens, and ignores the token chosen at the last one.
        """
        last = np.array([len(chain) - 1], dtype=np.int32)
        return self.prepare(chain)._replace(pick=last, params=SamplingParams())

    def rank(self, tree: TreeNodes, nodes: Sequence[int], k: int) -> Ranked:
        """Return the k most likely children of each of `nodes`, whose ancestors must be ranked.

        Raises LimitExceeded for too many nodes, and without free slots.
        """
        return self.model.rank([self.prepare_nodes(tree, nodes)], k)[0]

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """Return this row's segment of a forward pass that ranks these nodes."""
        return self._segment(tree, nodes)

    def commit(self, tree: TreeNodes, path: Sequence[int]) -> None:
        """Commit the root and the nodes of the path, and free the slots of other nodes.

        Committed nodes that were never evaluated become pending.
        """
        accepted = [0, *path]
        evaluated = [self._node_slots[node] for node in accepted if node in self._node_slots]
        self._node_slots = {}
        self.slots.commit(evaluated)
        self.cached += len(evaluated)
        self._pending += [int(tree.tokens[node]) for node in accepted[len(evaluated) :]]

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], rejected: Sequence[int]) -> None:
        """Commit a root and tokens below it, in time proportional to the change. Other nodes keep
        their numbers and slots.

        nodes: evaluated nodes of the first tokens; the remaining tokens become pending
        rejected: evaluated nodes whose slots become free
        """
        slots = [self._node_slots.pop(node) for node in nodes]
        self.slots.keep(slots)
        self.slots.release([self._node_slots.pop(node) for node in rejected])
        self.cached += len(slots)
        assert self.slots.used == self.cached + len(self._node_slots), "a slot is lost"
        self._pending += tokens[len(nodes) :]

    def abandon(self) -> None:
        """Free the slots of the current tree."""
        if self._node_slots:
            self.slots.commit(())
            self._node_slots = {}

    def _feed(self, tokens: Sequence[int]) -> None:
        chain = TokenTree.chain(tokens)
        self.model.choose([self.prepare_chunk(chain)])
        self.commit(chain, range(1, len(chain)))

    def _segment(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """Take slots, and return a segment of `nodes` below the chain of pending tokens.

        Raises LimitExceeded for too many nodes, and without free slots.
        """
        if self._pending and len(self._pending) + len(nodes) > self.model.max_nodes:
            pending, self._pending = self._pending, []
            self.extend(pending)
        above = len(self._pending)
        if above + len(nodes) > self.model.max_nodes:
            raise LimitExceeded(
                f"a tree of {len(nodes)} nodes: this model takes {self.model.max_nodes} in one call"
            )
        context, mask = self._context(tree, nodes), sight(tree, nodes)
        tokens, depths = (
            np.asarray(array, dtype=np.int32)[list(nodes)] for array in (tree.tokens, tree.depths)
        )
        if above:
            tokens, depths, mask = _under_chain(self._pending, tokens, depths, mask)
        positions = self.cached + depths
        slots = self.slots.take(positions)
        self.slots.keep(slots[:above].tolist())
        self.cached += above
        self._pending = []
        self._node_slots.update(zip(nodes, slots[above:].tolist(), strict=True))
        pick = np.arange(above, len(slots), dtype=np.int32)
        return Segment(self.row, tokens, slots, positions, context, mask, pick, self._params)

    def _context(self, tree: TreeNodes, nodes: Sequence[int]) -> NDArray[np.bool_]:  # [1 or n, S]
        """Return the slots that each node sees: committed slots and, if the tree grows over several
        forward passes, those of ancestors from earlier passes.
        """
        # copy the mask, since pending tokens are committed later
        committed = self.slots.committed[None, : self.slots.high_water].copy()
        if not self._node_slots:
            return committed
        parents = np.asarray(tree.parents).tolist()
        lines = {
            parent: self._line(parents, parent) for parent in {parents[node] for node in nodes}
        }
        visible = np.repeat(committed, len(nodes), axis=0)
        for row, node in enumerate(nodes):
            visible[row, lines[parents[node]]] = True
        return visible

    def _line(self, parents: Sequence[int], node: int) -> list[int]:
        """Return the slots of a node and its ancestors, except nodes that were not evaluated."""
        slots = list[int]()
        while node >= 0:
            if node in self._node_slots:
                slots.append(self._node_slots[node])
            node = parents[node]
        return slots


def _under_chain(
    chain: Sequence[int], tokens: IntArray, depths: IntArray, mask: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:  # [m + n], [m + n], [m + n, m + n]
    """Prepend a chain of m tokens to a tree of n nodes. Returns tokens, depths and mask."""
    above = len(chain)
    joint = np.tri(above + len(tokens), dtype=np.bool_)
    joint[above:, above:] = mask
    chain_depths = np.arange(above, dtype=np.int32)
    return (
        np.concatenate([np.array(chain, dtype=np.int32), tokens]),
        np.concatenate([chain_depths, above + depths]),
        joint,
    )


class TargetRow(NamedTuple):
    """The row and slots of a session's keys in a target in this process."""

    row: int
    slots: Slots


TargetText: TypeAlias = Callable[[], TargetRow]
"""A function that returns the current row and slots of a session in the target."""

MakeSequence: TypeAlias = Callable[[Model, int, TargetText | None, SamplingParams], ModelSequence]
"""A function that creates a sequence on a row of a draft. The third argument is None if the target
is in another process.
"""


def own_sequence(
    model: Model, row: int, beside: TargetText | None, params: SamplingParams
) -> ModelSequence:
    """Create a sequence that ignores the target's cache."""
    return ModelSequence(model, row, params)
