"""Mask tokens of a block draft: one call proposes tokens of several levels.

Mask tokens may follow a node that a call ranks. Each proposes tokens one level further down,
without seeing those between (PARD: An et al., arXiv 2504.18583). These are marginals: every node of
a level gets the same ones, with chances by its own path. A later call may rank the resulting nodes.
A mask's keys are freed after its call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from inference.backends import Masks, Ranked
from inference.drafters.draft_row import DraftRow
from inference.drafters.draft_rule import DraftRule
from inference.drafters.draft_tree import DraftTree, ProposedChildren
from inference.loop.draft_tuning import TUNING
from inference.planner.acceptance import AcceptanceModel
from inference.planner.child_features import EXCLUDED, mask_features, rank_features, score_part
from inference.planner.prices import Prices, widths_of
from inference.tree.growing_tree import EMPTY, PLACE, Mark


class Mask(NamedTuple):
    """Tokens that a block draft proposes at a mask, with features of their scores."""

    ids: list[int]
    scored: list[list[float]]  # [k, SCORED]


class Block(NamedTuple):
    """Masks that a call put after a node, the nearest first."""

    position: int  # of that node
    rank: float  # that it had
    masks: list[Mask]


class _CallPlan(NamedTuple):
    """A call: number of the most likely nodes that it ranks, and those followed by masks."""

    width: int
    masked: list[Mark]
    depth: int  # masks behind each of these


_NO_CALL = _CallPlan(0, [], 0)


class BlockMasks:
    """The masks of one proposer: where they are worth a wider call, and their proposals."""

    _tree: DraftTree
    _rule: DraftRule
    _plan: _CallPlan
    _behind: list[tuple[Mark, list[Mark]]]  # of the call: masked nodes, and their masks
    _blocks: dict[Mark, Block]  # of masked nodes, and of the root
    _offsets: dict[Mark, int]  # positions from the block's to the mask that named a node's children

    def __init__(self, masks: Masks, row: DraftRow, learned: AcceptanceModel) -> None:
        self._masks, self._row, self._learned = masks, row, learned
        self._reach, self._unsent = dict[tuple[int, int], float](), 0.0

    def open(self, tree: DraftTree, rule: DraftRule) -> None:
        """Begin a text. Tokens that its rule excludes are not proposed."""
        self._tree, self._rule, self._plan, self._behind = tree, rule, _NO_CALL, []
        self._blocks, self._offsets = tree.table(), tree.table()

    def set_floor(self, floor: float) -> None:
        """Estimate the gain of masks anew. floor: minimum value of a node that is sent"""
        self._reach.clear()
        self._unsent = TUNING.width * floor / 2  # of what a mask finds, as for a ranked node

    # --- masks in a call

    def add_to_call(self) -> list[Mark]:
        """Add the planned masks to the tree, but to none of its orders, each below the one before
        it. Returns them.
        """
        plan, self._plan = self._plan, _NO_CALL
        for node in plan.masked:
            line, start = [node], self._tree.position_of(node) + 1
            for position in range(start, start + self._fitting(node, plan.depth)):
                above = line[-1] & PLACE
                line.append(self._tree.add_node(self._masks.token, above, position, EMPTY))
            self._behind.append((node, line[1:]))
        return self._called

    def release(self) -> None:
        """Remove the call's masks, and free their keys."""
        self._row.release(self._called)
        self._tree.drop(self._called)

    @property
    def _called(self) -> list[Mark]:
        return [mask for _, masks in self._behind for mask in masks]

    def take(self, ranked: Ranked, greedy: bool) -> Iterator[Mark]:
        """Store the proposals of the call's masks. Yields the nodes whose children must be proposed
        again: those below, down to nodes with masks of their own.
        """
        behind, self._behind = self._behind, []
        if not behind:
            return
        ids, scores = ranked.ids.tolist(), ranked.scores
        depths = np.zeros(len(ids), dtype=np.int32)  # no feature of a mask
        tables = rank_features(scores, depths, greedy)
        allowed = (scores > EXCLUDED).sum(axis=1).tolist()
        row = 0
        tree = self._tree
        for node, masks in behind:
            rows = range(row, row + len(masks))
            row += len(masks)
            self._blocks[node] = Block(
                tree.position_of(node),
                tree.rank(node),
                [
                    Mask(ids[at][: allowed[at]], score_part(tables[at, : allowed[at]]))
                    for at in rows
                ],
            )
            yield from self._propose_below(node, greedy)

    def _propose_below(self, node: Mark, greedy: bool) -> Iterator[Mark]:
        tree = self._tree
        below = list(tree.children.get(node, {}).values())
        for one in below:  # the list grows during the loop
            if one in self._blocks:
                continue
            tree.masked.pop(one, None)
            self.propose(one, greedy)
            if one in tree.masked and one not in tree.ranked:  # ranked children are better
                yield one
            below.extend(tree.children.get(one, {}).values())

    # --- proposals

    def propose(self, node: Mark, greedy: bool) -> None:
        """Propose the node's children by the mask at its position, if there was one."""
        tree, block = self._tree, self._block_of(node)
        if block is None or node in tree.forced:
            return
        offset = tree.position_of(node) - block.position
        if not 1 <= offset <= len(block.masks):
            return
        mask = block.masks[offset - 1]
        kept = self._rule.allows(tree, node, mask.ids)
        ids, scored = list(compress(mask.ids, kept)), list(compress(mask.scored, kept))
        if not ids:
            return
        token = tree.token(node)
        again = ids.index(token) if token in ids else None
        table = mask_features(scored, offset, tree.rank(node) - block.rank, again)
        tree.masked[node] = ProposedChildren(ids, table, self._learned.masked(table, greedy))
        self._offsets[node] = offset

    def _block_of(self, node: Mark) -> Block | None:
        """The masks of the nearest call at the node or above it."""
        while node and node not in self._blocks:
            node = self._tree.parent(node)
        return self._blocks.get(node)

    def learn(self, node: Mark, token: int, greedy: bool) -> None:
        """Learn whether the target accepted a mask's proposal at this node."""
        named = self._tree.masked.get(node)
        if named is not None:
            taken = named.index_of(token)
            self._learned.observe_masked(named.table, greedy, self._offsets[node], taken)

    def inherit(self, root: Mark) -> None:
        """Let the next root keep the masks of the call above it."""
        block = self._block_of(root)
        if block is not None:
            self._blocks[root] = block

    # --- plans of calls

    def plan(
        self,
        nodes: Sequence[Mark],
        gains: Sequence[float],
        hits: float,
        prices: Prices,
        most_seconds: float,
    ) -> int:
        """Plan the next call: nodes and masks with most expected tokens for their seconds.

        gains: expected tokens of ranking the first node, the first two, ...
        hits: recent rate at which the draft proposed the target's token

        Returns the number of nodes that are ranked, 0 for no call.
        """
        plans = [
            one
            for one in self._plans(nodes, gains, hits)
            if self._row.whole_seconds(one[1]) <= most_seconds
        ]
        best = prices.best([(gain, self._row.seconds(size)) for _, size, gain in plans])
        self._plan = _NO_CALL if best is None else plans[best][0]
        return self._plan.width

    def _plans(
        self, nodes: Sequence[Mark], gains: Sequence[float], hits: float
    ) -> Iterator[tuple[_CallPlan, int, float]]:
        """Possible calls, with their nodes, masks included, and their expected tokens.

        Their sizes are few, since a call is padded. Within a size masks replace the least likely
        nodes.
        """
        if not nodes:
            return
        for width in widths_of(len(nodes)):
            yield _CallPlan(width, [], 0), width, gains[width - 1]
        free, room = self._unfollowed(nodes), self._row.free
        for depth in widths_of(self._masks.most):
            each = [self._gain(node, depth, hits) for node in nodes]
            for most in widths_of(room):
                for count in widths_of(most // (depth + 1)):
                    width = min(most - depth * count, len(nodes))
                    worth = [
                        mass * more - depth * self._unsent
                        for mass, more in zip(free[width - 1], each, strict=False)
                    ]
                    likeliest = sorted(range(width), key=worth.__getitem__, reverse=True)
                    masked = [at for at in likeliest[:count] if worth[at] > 0]
                    size = width + sum(self._fitting(nodes[at], depth) for at in masked)
                    if masked and 2 * size > most:  # smaller ones were offered before
                        gain = gains[width - 1] + sum(worth[at] for at in masked)
                        yield _CallPlan(width, [nodes[at] for at in masked], depth), size, gain

    def _fitting(self, node: Mark, most: int) -> int:
        """Number of masks after the node that may propose tokens within the text's length."""
        return max(min(most, self._tree.end - 3 - self._tree.position_of(node)), 0)

    def _unfollowed(self, nodes: Sequence[Mark]) -> list[list[float]]:
        """For the first node, the first two, ...: each one's chance that the text reaches it and
        none of its children among these.
        """
        tree, place = self._tree, dict[Mark, int]()
        mass, all_masses = list[float](), list[list[float]]()
        for at, node in enumerate(nodes):
            place[node] = at
            mass.append(math.exp(tree.rank(tree.root) - tree.rank(node)))
            if tree.parent(node) in place:
                above = place[tree.parent(node)]
                mass[above] = max(mass[above] - mass[at], 0.0)
            all_masses.append(mass[:])
        return all_masses

    def _gain(self, node: Mark, depth: int, hits: float) -> float:
        """Expected tokens that only these masks after this node propose, if the text reaches it."""
        if not self._fitting(node, depth):
            return 0.0
        block, copied = self._block_of(node), self._tree.copied.get(node)
        held = 0 if block is None else self._tree.position_of(node) - block.position
        left = 0 if block is None else len(block.masks) - held
        more = self._reached(0, depth, hits)
        if left > 0:
            more -= self._reached(held, min(left, depth), hits)
        if copied is not None:
            more *= 1 - min(sum(copied.chances), 1.0)
        return max(more, 0.0)

    def _reached(self, offset: int, depth: int, hits: float) -> float:
        """Expected accepted tokens of the `depth` masks after this offset.

        offset: 0 for a node that is ranked, else positions after the last known token
        """
        if (offset, depth) not in self._reach:
            rates = self._learned
            ranked = min(hits, float(rates.mean_edges(TUNING.width).sum()))
            chance = rates.mask_rate(offset) if offset else ranked
            found = 0.0
            for below in range(offset + 1, offset + 1 + depth):
                chance *= rates.mask_rate(below)
                found += chance
            self._reach[offset, depth] = found
        return self._reach[offset, depth]
