"""A proposer on one row of a block draft: a call names tokens of several levels.

Behind a node that a call ranks may stand masks. Each names tokens one level further down, without
knowing those between (PARD: An et al., arXiv 2504.18583). These are marginals: every node of a
level gets the same ones, with chances by its own path. They join the one best-first list, and a
later call may rank a node that they named. A mask's keys are freed after its call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from inference.backends import BlockModel, Masks, Model, Ranked
from inference.backends.sequence import MakeSequence, ModelSequence
from inference.drafters.copy_source import CopySource
from inference.drafters.draft_tree import Block, DraftNode, Guessed, Mask
from inference.drafters.model_proposer import ROOM, WIDEST, WIDTH, ModelProposer
from inference.planner.acceptance import EXCLUDED, features
from inference.planner.copying import joint_features
from inference.planner.guessing import guess_features, said_by
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices, widths_of
from inference.proposer import MODEL
from inference.sampling import SamplingParams


def proposers_on(model: Model) -> Callable[..., ModelProposer]:
    """Return what makes a proposer on a row of this draft: a BlockProposer where it has masks."""
    if isinstance(model, BlockModel):
        return partial(BlockProposer, masks=model.masks)
    return ModelProposer


class _Plan(NamedTuple):
    """A call: how many of the likeliest nodes it ranks, and behind which of them masks stand."""

    width: int
    masked: list[DraftNode]
    depth: int  # masks behind each of these


_NO_CALL = _Plan(0, [], 0)


class BlockProposer(ModelProposer):
    """A ModelProposer that puts masks behind nodes where that is worth the wider call."""

    _plan: _Plan
    _behind: list[tuple[DraftNode, list[int]]]  # of the call: masked nodes, their masks' places

    def __init__(
        self,
        model: Model,
        row: int,
        knowledge: Knowledge,
        prices: Prices,
        *,
        masks: Masks,
        room: int = ROOM,
        clock: Callable[[], float] = time.perf_counter,
        kind: int = MODEL,
        source: CopySource | None = None,
        sequence: MakeSequence = ModelSequence,
    ) -> None:
        self._masks = masks
        super().__init__(
            model,
            row,
            knowledge,
            prices,
            room=room,
            clock=clock,
            kind=kind,
            source=source,
            sequence=sequence,
        )

    def _begin(self, prompt: Sequence[int], params: SamplingParams, end: int) -> None:
        self._plan, self._behind = _NO_CALL, []
        super()._begin(prompt, params, end)

    # --- masks in a call

    def _more_places(self) -> list[int]:
        """Take places for the planned masks, each below the one before it."""
        plan, self._plan = self._plan, _NO_CALL
        for node in plan.masked:
            above, places = node.place, list[int]()
            assert above is not None, "a masked node is ranked in the same call"
            for depth in range(node.depth + 1, node.depth + 1 + self._fitting(node, plan.depth)):
                above = self._places.put(self._masks.token, above, depth)
                places.append(above)
            self._behind.append((node, places))
        return [place for _, places in self._behind for place in places]

    def _name_ranked(self, nodes: Sequence[DraftNode], ranked: Ranked) -> None:
        """Name the children of ranked nodes, and what their masks say further down."""
        behind, self._behind = self._behind, []
        gone = [place for _, places in behind for place in places]
        self._sequence.advance([], [], gone)
        self._places.free(gone)
        own = len(nodes)
        super()._name_ranked(nodes, Ranked(ranked.ids[:own], ranked.scores[:own]))
        for (node, _), masks in zip(behind, self._read(behind, ranked, own), strict=True):
            node.block = Block(node, masks)
            self._hand_down(node)

    def _read(
        self, behind: Sequence[tuple[DraftNode, list[int]]], ranked: Ranked, start: int
    ) -> Iterator[list[Mask]]:
        """What the masks of each node name; the model's rows of them begin at `start`."""
        if not behind:
            return
        ids, scores = ranked.ids[start:].tolist(), ranked.scores[start:]
        depths = np.zeros(len(ids), dtype=np.int32)  # no feature of a mask
        tables = features(scores, depths, self._params.greedy)
        allowed = (scores > EXCLUDED).sum(axis=1).tolist()
        row = 0
        for _, places in behind:
            rows = range(row, row + len(places))
            yield [Mask(ids[at][: allowed[at]], said_by(tables[at, : allowed[at]])) for at in rows]
            row += len(places)

    def _hand_down(self, node: DraftNode) -> None:
        """Name anew what the node's masks say, below it, where no nearer call has spoken."""
        block = node.block
        below = list(node.children.values())
        for one in below:  # the list grows during the loop
            if one.block is not None and one.block.node.position > node.position:
                continue
            one.block, one.guessed = block, None
            self._guess(one)
            below.extend(one.children.values())

    # --- what masks name

    def _name_early(self, node: DraftNode) -> None:
        super()._name_early(node)
        self._guess(node)

    def _guess(self, node: DraftNode) -> None:
        """Name the node's children by the mask that stood at its place, if one did."""
        block = node.block
        if block is None or not node.alive or node.guessed is not None:
            return
        offset = node.position - block.node.position
        if not 1 <= offset <= len(block.masks):
            return
        mask, acceptance = block.masks[offset - 1], self._known.acceptance
        again = mask.ids.index(node.token) if node.token in mask.ids else None
        table = guess_features(mask.said, offset, block.node.log - node.log, again)
        chances = acceptance.guessing.chances(table, self._params.greedy)
        node.guessed = Guessed(mask.ids, table, chances, offset)
        if node.features is not None:
            return  # it was ranked: the draft's own words are better
        ids = mask.ids
        if node.copied is not None:
            said = dict(zip(ids, chances, strict=True))
            copied = dict(zip(node.copied.ids, node.copied.chances, strict=True))
            ids, both = joint_features(said, copied)
            chances = acceptance.copying.together(both).tolist()
        node.covered = min(sum(chances), 1.0)
        self._name_children(node, ids, chances)

    def _learn(self, root: DraftNode, token: int) -> None:
        super()._learn(root, token)
        if root.guessed is not None:
            ids, table, _, offset = root.guessed
            self._known.acceptance.guessing.observe(
                table, self._params.greedy, offset, ids.index(token) if token in ids else None
            )

    # --- what is worth it

    def _look(self) -> None:
        super()._look()
        self._reach: dict[tuple[int, int], float] = {}
        self._unsent = WIDTH * self._floor / 2  # of what a mask finds, as for a ranked node

    def _fitting(self, node: DraftNode, most: int) -> int:
        """How many masks behind the node name tokens that may still be wanted."""
        return max(min(most, self._list.end - 3 - node.position), 0)

    def _width(
        self, nodes: Sequence[DraftNode], gains: Sequence[float], most_seconds: float
    ) -> int:
        """Plan the next call: nodes and masks with most expected tokens for their seconds."""
        room = min(WIDEST, self._model.max_nodes, self._free)
        plans = [
            one
            for one in self._plans(nodes, gains, room)
            if self._whole_seconds(one[1]) <= most_seconds
        ]
        best = self.prices.best([(gain, self._seconds(size)) for _, size, gain in plans])
        self._plan = _NO_CALL if best is None else plans[best][0]
        return self._plan.width

    def _plans(
        self, nodes: Sequence[DraftNode], gains: Sequence[float], room: int
    ) -> Iterator[tuple[_Plan, int, float]]:
        """Calls that may be made, with their nodes, masks counted, and their expected tokens.

        Their sizes are few, since a call is padded. Within a size masks replace the least likely
        nodes.
        """
        if not nodes:
            return
        for width in widths_of(len(nodes)):
            yield _Plan(width, [], 0), width, gains[width - 1]
        free = self._unfollowed(nodes)
        for depth in widths_of(self._masks.most):
            each = [self._gain(node, depth) for node in nodes]
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
                        yield _Plan(width, [nodes[at] for at in masked], depth), size, gain

    def _unfollowed(self, nodes: Sequence[DraftNode]) -> list[list[float]]:
        """For the first node, the first two, ...: each one's chance that the text comes to it and
        to none of its children among these.
        """
        root, place = self._list.root.log, dict[DraftNode, int]()
        mass, all_masses = list[float](), list[list[float]]()
        for at, node in enumerate(nodes):
            place[node] = at
            mass.append(math.exp(node.log - root))
            if node.parent in place:
                above = place[node.parent]
                mass[above] = max(mass[above] - mass[at], 0.0)
            all_masses.append(mass[:])
        return all_masses

    def _gain(self, node: DraftNode, depth: int) -> float:
        """Expected tokens that so many masks behind this node find and nothing else names, once
        the text comes to it.
        """
        if not self._fitting(node, depth):
            return 0.0
        block = node.block
        held = 0 if block is None else node.position - block.node.position
        left = 0 if block is None else len(block.masks) - held
        more = self._reached(0, depth) - (self._reached(held, min(left, depth)) if left > 0 else 0)
        if node.copied is not None:
            more *= 1 - min(sum(node.copied.chances), 1.0)
        return max(more, 0.0)

    def _reached(self, offset: int, depth: int) -> float:
        """Expected tokens that the `depth` masks behind a place of this offset name.

        offset: 0 for a node that is ranked, else positions behind the last known token
        """
        if (offset, depth) not in self._reach:
            guessing, rates = self._known.acceptance.guessing, self._known.acceptance
            ranked = min(self._hits, float(rates.mean_edges(WIDTH).sum()))
            chance = guessing.rate(offset) if offset else ranked
            found = 0.0
            for below in range(offset + 1, offset + 1 + depth):
                chance *= guessing.rate(below)
                found += chance
            self._reach[offset, depth] = found
        return self._reach[offset, depth]
