"""Drafting and accepting a tree inside a graph: fixed shapes, no data-dependent control flow."""

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
    """Positions and attention masks of a model's new nodes."""

    positions: Tensor  # [B, n] int32
    context_mask: Tensor  # [B, 1, S] int32 0/1
    tree_mask: Tensor  # [B, n, n] int32 0/1


class CacheRows(NamedTuple):
    """Cache rows of a model's new nodes, with their positions and masks."""

    rows: Tensor  # [B] int32
    sight: NodeSight


class Draws(NamedTuple):
    """Sampling parameters of each row, and the noise of draft and target for all tokens at the
    positions below the root.
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
    """Grow a tree level by level.

    Returns its tokens [B, nodes], and the draft's keys and values [B, 1 + inner nodes, width] for
    each layer, starting with the two entry nodes.

    entry: [B, 2] int32, a token that the draft has not computed yet (or padding), then the root
    at: rows, positions and masks of the two entry nodes and the inner nodes
    """
    rows, sight = at
    levels, level, new, first = [entry[:, 1:]], entry, None, 0
    for depth, (wide, branch) in enumerate(zip(shape.levels, shape.branches, strict=False)):
        last = first + level.shape[1]
        positions, mask = sight.positions[:, first:last], sight.tree_mask[:, first:last, :last]
        out: Hidden = draft(level, rows, positions, sight.context_mask, mask, None, cache, new)
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
    """Accept the target's choices in trees of a fixed shape, like accept_matches().

    tokens, chosen: [B, nodes] int32; siblings are distinct, so each level has at most one match

    Returns the accepted node at each depth [B, depth], NONE below the last, and the next token [B].
    """
    none = torch.full_like(chosen[:, 0], NONE)
    # Whether each node is accepted [B]; None for the root, which always is.
    reached: list[Tensor | None] = [None]
    path, next_token = [none] * shape.depth, chosen[:, 0]
    for node in range(1, shape.nodes):
        parent, depth = shape.parents[node], shape.depths[node]
        matches, above = tokens[:, node] == chosen[:, parent], reached[parent]
        accepted = matches if above is None else matches & above
        reached.append(accepted)
        path[depth - 1] = torch.where(accepted, torch.full_like(none, node), path[depth - 1])
        next_token = torch.where(accepted, chosen[:, node], next_token)
    return torch.stack(path, 1), next_token
