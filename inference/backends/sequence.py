"""One sequence on one row of a model: its committed tokens, their KV slots, and attention masks.

The KV cache covers every committed token but the last, which is the root of the next tree. A node's
position is the number of cached tokens plus its depth. The token chosen at a node has the next
position. Committed tokens that were never evaluated (such as an accepted leaf that was never
expanded) are *pending*. The next call feeds them as a chain above the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked, Segment
from inference.backends.slots import Slots
from inference.errors import LimitExceeded
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree, TreeNodes, sight


class ModelSequence:
    """The state of one row of `model` between two calls.

    slots: the row's KV slots, which may hold a cached prefix already.
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
        """Commit tokens without choosing: a prompt without its last token, the first root."""
        for start in range(0, len(tokens), self.model.max_nodes):
            self._feed(tokens[start : start + self.model.max_nodes])

    def choose(self, tree: TokenTree) -> IntArray:  # [n]
        """Evaluate a tree; return the token chosen at each node.

        The nodes' keys are provisional until commit(). Raises LimitExceeded when slots run out.
        """
        return self.model.choose([self.prepare(tree)])[0].tokens

    def prepare(self, tree: TokenTree) -> Segment:
        """This row's segment of a call that chooses a token at every node.

        The caller makes the call and then commits the accepted nodes. Raises LimitExceeded when
        slots run out.
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
        """This row's segment of a call that prefills prompt tokens.

        All of them are to be committed, and the token chosen at the last one is ignored.
        """
        last = np.array([len(chain) - 1], dtype=np.int32)
        return self.prepare(chain)._replace(pick=last, params=SamplingParams())

    def rank(self, tree: TreeNodes, nodes: Sequence[int], k: int) -> Ranked:
        """The k most likely children of each of `nodes`.

        Their ancestors were ranked in earlier calls on the same growing tree. Raises LimitExceeded
        for too many nodes, or when slots run out.
        """
        return self.model.rank([self.prepare_nodes(tree, nodes)], k)[0]

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """This row's segment of a ranking call, which may serve other rows as well."""
        return self._segment(tree, nodes)

    def commit(self, tree: TreeNodes, path: Sequence[int]) -> None:
        """Commit the root and the path, and free the other nodes' slots.

        Committed nodes that were never evaluated become pending.
        """
        kept = [0, *path]
        evaluated = [self._node_slots[node] for node in kept if node in self._node_slots]
        self._node_slots = {}
        self.slots.commit(evaluated)
        self.cached += len(evaluated)
        self._pending += [int(tree.tokens[node]) for node in kept[len(evaluated) :]]

    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None:
        """Commit a root and tokens below it, at a cost proportional to the change.

        All other nodes keep their numbers and their slots.

        nodes: evaluated nodes of the first tokens; the later tokens become pending.
        gone: evaluated nodes whose slots are freed.
        """
        slots = [self._node_slots.pop(node) for node in nodes]
        self.slots.keep(slots)
        self.slots.release([self._node_slots.pop(node) for node in gone])
        self.cached += len(slots)
        assert self.slots.used == self.cached + len(self._node_slots), "a slot is lost"
        self._pending += tokens[len(nodes) :]

    def abandon(self) -> None:
        """Free the slots of the current tree, as if it had never been evaluated."""
        if self._node_slots:
            self.slots.commit(())
            self._node_slots = {}

    def _feed(self, tokens: Sequence[int]) -> None:
        chain = TokenTree.chain(tokens)
        self.model.choose([self.prepare_chunk(chain)])
        self.commit(chain, range(1, len(chain)))

    def _segment(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        """The segment that evaluates `nodes`, with pending tokens as a chain above them.

        It takes the slots. Raises LimitExceeded for too many nodes, or when slots run out.
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
            np.asarray(part, dtype=np.int32)[list(nodes)] for part in (tree.tokens, tree.depths)
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
        """The cached slots that each node sees: committed ones and those of its earlier ancestors.

        The second kind exists only for a tree that is grown over several calls.
        """
        # a copy, since pending nodes are marked later
        committed = self.slots.committed[None, : self.slots.high_water].copy()
        if not self._node_slots:
            return committed
        parents = np.asarray(tree.parents).tolist()
        lines = {
            parent: self._line(parents, parent) for parent in {parents[node] for node in nodes}
        }
        seen = np.repeat(committed, len(nodes), axis=0)
        for row, node in enumerate(nodes):
            seen[row, lines[parents[node]]] = True
        return seen

    def _line(self, parents: Sequence[int], node: int) -> list[int]:
        """The slots of a node and its ancestors, those that were evaluated."""
        slots = list[int]()
        while node >= 0:
            if node in self._node_slots:
                slots.append(self._node_slots[node])
            node = parents[node]
        return slots


def _under_chain(
    chain: Sequence[int], tokens: IntArray, depths: IntArray, mask: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:  # [m + n], [m + n], [m + n, m + n]
    """Tokens, depths and mask of n nodes with a chain of m tokens put above them."""
    above = len(chain)
    whole = np.tri(above + len(tokens), dtype=np.bool_)
    whole[above:, above:] = mask
    every = np.arange(above, dtype=np.int32)
    return (
        np.concatenate([np.array(chain, dtype=np.int32), tokens]),
        np.concatenate([every, above + depths]),
        whole,
    )


class TargetRow(NamedTuple):
    """The row and the slots in which a target in this process has the keys of a text."""

    row: int
    slots: Slots


TargetText: TypeAlias = Callable[[], TargetRow]
"""Returns where the target has a text, at the time of a call."""

MakeSequence: TypeAlias = Callable[[Model, int, TargetText | None, SamplingParams], ModelSequence]
"""Makes the sequence of a text on a row of a draft. The third argument returns where its target has
the text; None for a draft in another process.
"""


def own_sequence(
    model: Model, row: int, beside: TargetText | None, params: SamplingParams
) -> ModelSequence:
    """Make a sequence that reads nothing of the target."""
    return ModelSequence(model, row, params)
