"""Masks of a block draft: one call names tokens of several levels.

Behind a node that a call ranks may stand masks. Each names tokens one level further down, without
knowing those between (PARD: An et al., arXiv 2504.18583). These are marginals: every node of a
level gets the same ones, with chances by its own path. A later call may rank a node that they
named. A mask's keys are freed after its call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from inference.backends import Masks, Ranked
from inference.draft_tuning import TUNING
from inference.drafters.draft_row import DraftRow
from inference.drafters.draft_rule import DraftRule
from inference.drafters.draft_tree import Block, DraftNode, DraftTree, Mask, Named
from inference.planner.acceptance import AcceptanceModel
from inference.planner.child_features import EXCLUDED, mask_features, rank_features, said_by
from inference.planner.prices import Prices, widths_of


class _CallPlan(NamedTuple):
    """A call: how many of the likeliest nodes it ranks, and behind which of them masks stand."""

    width: int
    masked: list[DraftNode]
    depth: int  # masks behind each of these


_NO_CALL = _CallPlan(0, [], 0)


class BlockMasks:
    """The masks of one proposer: where they are worth the wider call, and what they name."""

    _tree: DraftTree
    _rule: DraftRule
    _plan: _CallPlan
    _behind: list[tuple[DraftNode, list[int]]]  # of the call: masked nodes, their masks' indices

    def __init__(self, masks: Masks, row: DraftRow, learned: AcceptanceModel) -> None:
        self._masks, self._row, self._learned = masks, row, learned
        self._reach, self._unsent = dict[tuple[int, int], float](), 0.0

    def open(self, tree: DraftTree, rule: DraftRule) -> None:
        """Begin a text. Masks name nothing that its rule excludes."""
        self._tree, self._rule, self._plan, self._behind = tree, rule, _NO_CALL, []

    def look(self, floor: float) -> None:
        """Forget what masks were worth. floor: least value of a node that is sent"""
        self._reach.clear()
        self._unsent = TUNING.width * floor / 2  # of what a mask finds, as for a ranked node

    # --- masks in a call

    def put(self) -> list[int]:
        """Return indices of the planned masks, each below the one before it."""
        plan, self._plan = self._plan, _NO_CALL
        for node in plan.masked:
            above, indices = node.index, list[int]()
            assert above is not None, "a masked node is ranked in the same call"
            for depth in range(node.depth + 1, node.depth + 1 + self._fitting(node, plan.depth)):
                above = self._row.nodes.put(self._masks.token, above, depth)
                indices.append(above)
            self._behind.append((node, indices))
        return [index for _, indices in self._behind for index in indices]

    def release(self) -> None:
        """Free the keys of the call's masks."""
        self._row.release([index for _, indices in self._behind for index in indices])

    def take(self, ranked: Ranked, greedy: bool) -> Iterator[DraftNode]:
        """Read what the call's masks name. Yields the nodes whose children are to be named anew:
        those below, where no nearer call has spoken.
        """
        behind, self._behind = self._behind, []
        if not behind:
            return
        ids, scores = ranked.ids.tolist(), ranked.scores
        depths = np.zeros(len(ids), dtype=np.int32)  # no feature of a mask
        tables = rank_features(scores, depths, greedy)
        allowed = (scores > EXCLUDED).sum(axis=1).tolist()
        row = 0
        for node, indices in behind:
            rows = range(row, row + len(indices))
            row += len(indices)
            node.block = Block(
                node,
                [Mask(ids[at][: allowed[at]], said_by(tables[at, : allowed[at]])) for at in rows],
            )
            yield from self._hand_down(node, greedy)

    def _hand_down(self, node: DraftNode, greedy: bool) -> Iterator[DraftNode]:
        below = list(node.children.values())
        for one in below:  # the list grows during the loop
            if one.block is not None and one.block.node.position > node.position:
                continue
            one.block, one.masked = node.block, None
            self.name(one, greedy)
            if one.masked is not None and one.ranked is None:  # a ranked one was told better
                yield one
            below.extend(one.children.values())

    # --- what masks name

    def name(self, node: DraftNode, greedy: bool) -> None:
        """Let the node have the children that the mask at its place names, if one stood there."""
        block = node.block
        if block is None or node.forced or not node.alive:
            return
        offset = node.position - block.node.position
        if not 1 <= offset <= len(block.masks):
            return
        mask = block.masks[offset - 1]
        kept = self._rule.allows(node, mask.ids)
        ids, said = list(compress(mask.ids, kept)), list(compress(mask.said, kept))
        if not ids:
            return
        again = ids.index(node.token) if node.token in ids else None
        table = mask_features(said, offset, block.node.log - node.log, again)
        node.masked = Named(ids, table, self._learned.masked(table, greedy))
        node.offset = offset

    def learn(self, root: DraftNode, token: int, greedy: bool) -> None:
        """Learn whether the target took what a mask named at the root."""
        if root.masked is not None:
            ids, table, _ = root.masked
            taken = ids.index(token) if token in ids else None
            self._learned.observe_masked(table, greedy, root.offset, taken)

    # --- what is worth it

    def plan(
        self,
        nodes: Sequence[DraftNode],
        gains: Sequence[float],
        hits: float,
        prices: Prices,
        most_seconds: float,
    ) -> int:
        """Plan the next call: nodes and masks with most expected tokens for their seconds.

        gains: expected tokens of ranking the first node, the first two, ...
        hits: how often the draft named the target's token lately
        Returns how many of the nodes are ranked, 0 for no call.
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
        self, nodes: Sequence[DraftNode], gains: Sequence[float], hits: float
    ) -> Iterator[tuple[_CallPlan, int, float]]:
        """Calls that may be made, with their nodes, masks counted, and their expected tokens.

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

    def _fitting(self, node: DraftNode, most: int) -> int:
        """The number of masks behind the node name tokens that may still be wanted."""
        return max(min(most, self._tree.end - 3 - node.position), 0)

    def _unfollowed(self, nodes: Sequence[DraftNode]) -> list[list[float]]:
        """For the first node, the first two, ...: each one's chance that the text comes to it and
        to none of its children among these.
        """
        root, place = self._tree.root.log, dict[DraftNode, int]()
        mass, all_masses = list[float](), list[list[float]]()
        for at, node in enumerate(nodes):
            place[node] = at
            mass.append(math.exp(node.log - root))
            if node.parent in place:
                above = place[node.parent]
                mass[above] = max(mass[above] - mass[at], 0.0)
            all_masses.append(mass[:])
        return all_masses

    def _gain(self, node: DraftNode, depth: int, hits: float) -> float:
        """Expected tokens that so many masks behind this node find and nothing else names, once
        the text comes to it.
        """
        if not self._fitting(node, depth):
            return 0.0
        block = node.block
        held = 0 if block is None else node.position - block.node.position
        left = 0 if block is None else len(block.masks) - held
        more = self._reached(0, depth, hits)
        if left > 0:
            more -= self._reached(held, min(left, depth), hits)
        if node.copied is not None:
            more *= 1 - min(sum(node.copied.chances), 1.0)
        return max(more, 0.0)

    def _reached(self, offset: int, depth: int, hits: float) -> float:
        """Expected tokens that the `depth` masks behind a place of this offset name.

        offset: 0 for a node that is ranked, else positions behind the last known token
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
