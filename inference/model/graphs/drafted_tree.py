"""A draft tree inside a graph, and the walk over it: fixed shapes, no data-dependent flow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inference.model.cache import KeysValues
from inference.model.choice.arithmetic import Arithmetic
from inference.model.choice.sampler import Sampling, guess_drawn, guess_greedy
from inference.model.decoder import Decoder, Hidden
from inference.tree.tree_shape import NONE, Branches


class NodeSight(NamedTuple):
    """Positions of a model's new nodes, and what they see."""

    positions: Tensor  # [B, n] int32
    context_mask: Tensor  # [B, 1, S] int32 0/1
    tree_mask: Tensor  # [B, n, n] int32 0/1


class CacheRows(NamedTuple):
    """The cache rows of a model's new nodes, and what the nodes see there."""

    rows: Tensor  # [B] int32
    seen: NodeSight


class Draws(NamedTuple):
    """Sampling parameters of each row, and the noise that draft and target share.

    The noise covers every token at each position below the row's root.
    """

    sampling: Sampling
    table: Tensor  # [B, depth + 1, V] float32

    def below(self, depth: int, wide: int) -> Tensor:  # [B, wide, V]
        """Return the noise for the children of `wide` nodes at this depth."""
        return self.table[:, depth : depth + 1].expand(-1, wide, -1)


def draft_tree(
    draft: Decoder,
    shape: Branches,
    entry: Tensor,
    at: CacheRows,
    cache: KeysValues,
    draws: Draws | None,
    by: Arithmetic,
) -> tuple[Tensor, KeysValues]:
    """Grow the tree level by level.

    Returns its tokens [B, nodes], and each layer's keys and values [B, 1 + inner nodes, width] of
    what the draft computed: the two entry nodes first.

    entry: [B, 2] int32, a token that the draft has not seen yet (or padding), then the root
    at: of the two entry nodes and the tree's inner nodes
    """
    rows, seen = at
    levels, level, new, first = [entry[:, 1:]], entry, None, 0
    for depth, (wide, branch) in enumerate(zip(shape.levels, shape.branches, strict=False)):
        last = first + level.shape[1]
        positions, mask = seen.positions[:, first:last], seen.tree_mask[:, first:last, :last]
        out: Hidden = draft(level, rows, positions, seen.context_mask, mask, None, cache, new)
        logits = draft.logits(out.states[:, -wide:])
        if draws is None:
            ids = guess_greedy(logits, branch, by, draft.share)
        else:
            drawn = draws.below(depth, wide)
            ids = guess_drawn(logits, draws.sampling, drawn, branch, by, draft.share)
        new = out.new if new is None else new.followed_by(out.new)
        level, first = ids.flatten(1), last
        levels.append(level)
    assert new is not None
    return torch.cat(levels, 1), new


def accept_in_graph(shape: Branches, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the target's choices in trees of one shape, as accept_matches does.

    tokens, chosen: [B, nodes] int32; siblings are distinct, so no level has two matches

    Returns the accepted node of each depth [B, depth], NONE below the last, and the next token [B].
    """
    none = torch.full_like(chosen[:, 0], NONE)
    # Whether each node is reached [B]; None for the root, which always is.
    reached: list[Tensor | None] = [None]
    path, next_token = [none] * shape.depth, chosen[:, 0]
    for node in range(1, shape.nodes):
        parent, depth = shape.parents[node], shape.depths[node]
        taken, above = tokens[:, node] == chosen[:, parent], reached[parent]
        here = taken if above is None else taken & above
        reached.append(here)
        path[depth - 1] = torch.where(here, torch.full_like(none, node), path[depth - 1])
        next_token = torch.where(here, chosen[:, node], next_token)
    return torch.stack(path, 1), next_token
