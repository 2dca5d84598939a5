"""One sequence on one row of a model: which tokens are committed, which slots hold their keys, what
a tree's nodes see.

The KV cache covers every committed token but the last, which is the root of the next tree. A node's
position is the number of cached tokens plus its depth; what is chosen at it has the position after.
Committed tokens that were never forwarded (an accepted leaf the draft did not expand) are
*pending*: the next call feeds them as a chain above the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked, Segment
from inference.backends.slots import Slots
from inference.errors import LimitExceeded
from inference.sampling import SamplingParams
from inference.tree import IntArray, TokenTree, TreeNodes, sight


class ModelSequence:
    """A row of `model` between two calls; `slots` may hold a prefix already (the engine reuses
    rows).
    """

    def __init__(
        self, model: Model, row: int, params: SamplingParams, slots: Slots | None = None
    ) -> None:
        self.model, self.row, self._params = model, row, params
        self.slots = Slots(model.capacity) if slots is None else slots
        self.cached = int(self.slots.committed.sum())  # tokens whose keys are committed
        self._pending: list[int] = []
        self._node_slots: dict[int, int] = {}  # evaluated node of the current tree -> slot

    @property
    def length(self) -> int:
        """Committed tokens below the root: cached and pending."""
        return self.cached + len(self._pending)

    def extend(self, tokens: Sequence[int]) -> None:
        """Commit tokens without choosing: a prompt but its last token, which is the first root."""
        for start in range(0, len(tokens), self.model.max_nodes):
            self._feed(tokens[start : start + self.model.max_nodes])

    def choose(self, tree: TokenTree) -> IntArray:  # [n]
        """The token chosen at each node; the nodes' keys are provisional until commit."""
        return self.model.choose([self.prepare(tree)])[0]

    def prepare(self, tree: TokenTree) -> Segment:
        """This row's share of a call that chooses at every node; whoever makes the call commits
        what it accepts.
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
        """The same for prompt tokens, at which nothing is chosen that anybody reads; all of them
        are to be committed.
        """
        last = np.array([len(chain) - 1], dtype=np.int32)
        return self.prepare(chain)._replace(pick=last, params=SamplingParams())

    def rank(self, tree: TreeNodes, nodes: Sequence[int], k: int) -> Ranked:
        """The k likeliest children of `nodes`, whose ancestors were ranked in earlier calls on
        the same growing tree.
        """
        return self.model.rank([self.prepare_nodes(tree, nodes)], k)[0]

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """This row's share of a call that ranks them; whoever makes the call may serve other
        rows with it.
        """
        return self._segment(tree, nodes)

    def commit(
        self, tree: TreeNodes, path: Sequence[int], place: Mapping[int, int] | None = None
    ) -> None:
        """Keep the root and the path, free the rest; nodes that were never evaluated become
        pending.

        place: nodes that are not freed, and which nodes of the next tree they are: of those under
        the next root, the root included.
        """
        kept = [0, *path]
        evaluated = [self._node_slots[node] for node in kept if node in self._node_slots]
        self._node_slots = {
            new: self._node_slots[old]
            for old, new in (place or {}).items()
            if old in self._node_slots
        }
        self.slots.commit(
            np.array(evaluated, dtype=np.int32),
            np.array(list(self._node_slots.values()), dtype=np.int32),
        )
        self.cached += len(evaluated)
        self._pending += [int(tree.tokens[node]) for node in kept[len(evaluated) :]]

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it in the size of what changes: other nodes keep their
        numbers and their slots.

        nodes: those of the first tokens, as far as they were evaluated; later tokens become
        pending.  gone: evaluated nodes that are freed.
        """
        slots = [self._node_slots.pop(node) for node in nodes]
        self.slots.committed[slots] = True
        self.slots.release([self._node_slots.pop(node) for node in gone])
        self.cached += len(slots)
        self._pending += tokens[len(nodes) :]

    def abandon(self) -> None:
        """Forget the tree in hand: as if it had never been evaluated."""
        if self._node_slots:
            self.slots.commit(np.array([], dtype=np.int32))
            self._node_slots = {}

    def _feed(self, tokens: Sequence[int]) -> None:
        chain = TokenTree.chain(tokens)
        self.model.choose([self.prepare_chunk(chain)])
        self.commit(chain, range(1, len(chain)))

    def _segment(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """The call that evaluates `nodes`, with pending tokens as a chain above them; slots are
        taken here.
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
            np.array([part[node] for node in nodes], dtype=np.int32)
            for part in (tree.tokens, tree.depths)
        )
        if above:
            tokens, depths, mask = _under_chain(self._pending, tokens, depths, mask)
        positions = self.cached + depths
        slots = self.slots.take(positions)
        self.slots.committed[slots[:above]] = True
        self.cached += above
        self._pending = []
        self._node_slots.update(zip(nodes, slots[above:].tolist(), strict=True))
        pick = np.arange(above, len(slots), dtype=np.int32)
        return Segment(self.row, tokens, slots, positions, context, mask, pick, self._params)

    def _context(self, tree: TreeNodes, nodes: Sequence[int]) -> NDArray[np.bool_]:  # [1 or n, S]
        """Committed slots and, for a tree grown over several calls, the slots of each node's
        earlier ancestors.
        """
        committed: NDArray[np.bool_] = np.array(
            self.slots.committed[None, : self.slots.high_water]
        )  # no view: pending nodes are marked after this
        if not self._node_slots:
            return committed
        lines = {
            parent: self._line(tree, parent) for parent in {tree.parents[node] for node in nodes}
        }
        seen = np.repeat(committed, len(nodes), axis=0)
        for row, node in enumerate(nodes):
            seen[row, lines[tree.parents[node]]] = True
        return seen

    def _line(self, tree: TreeNodes, node: int) -> list[int]:
        """The slots of this node and of its ancestors, as far as they were evaluated."""
        slots = list[int]()
        while node >= 0:
            if node in self._node_slots:
                slots.append(self._node_slots[node])
            node = tree.parents[node]
        return slots


def _under_chain(
    chain: Sequence[int], tokens: IntArray, depths: IntArray, mask: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:  # [m + n], [m + n], [m + n, m + n]
    """Nodes, their depths and what they see, once the m tokens of a chain stand above them."""
    above = len(chain)
    whole = np.tri(above + len(tokens), dtype=np.bool_)
    whole[above:, above:] = mask
    every = np.arange(above, dtype=np.int32)
    return (
        np.concatenate([np.array(chain, dtype=np.int32), tokens]),
        np.concatenate([every, above + depths]),
        whole,
    )
