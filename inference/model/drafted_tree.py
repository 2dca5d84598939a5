"""A draft tree inside a graph, and the walk over it: fixed shapes, no data-dependent flow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inference.model.arithmetic import Arithmetic
from inference.model.decoder import Decoder, Hidden, KeysValues
from inference.model.sampler import (
    Sampling,
    guess_drawn,
    guess_greedy,
    noise_table,
)
from inference.tree_shape import NONE, Branches


class Seen(NamedTuple):
    """Positions of a model's new nodes, and what they see."""

    positions: Tensor  # [B, n] int32
    context_mask: Tensor  # [B, 1, S] int32 0/1
    tree_mask: Tensor  # [B, n, n] int32 0/1


class Drafted(NamedTuple):
    """A drafted tree, and keys and values of the nodes that the draft computed, its two entry
    nodes first.
    """

    tokens: Tensor  # [B, nodes] int32
    new: KeysValues  # [layers, B, kv heads, 1 + inner nodes, head dim]


class Draws(NamedTuple):
    """How each row is sampled, and the noise that draft and target share.

    The noise covers every token at each position below the row's root.
    """

    sampling: Sampling
    table: Tensor  # [B, depth + 1, V] float32

    @classmethod
    def of(
        cls,
        sampling: Sampling | None,
        seen: Seen,
        shape: Branches,
        vocabulary: int,
        by: Arithmetic,
    ) -> Draws | None:
        """Return the draws of trees whose roots are the first nodes; None where every row is
        greedy.
        """
        if sampling is None:
            return None
        return cls(
            sampling,
            noise_table(sampling, seen.positions[:, :1] + 1, shape.depth + 1, vocabulary, by),
        )

    def rows(self, order: Tensor) -> Draws:
        """Return the draws of these rows, in this order."""
        return Draws(
            Sampling(*(part.index_select(0, order) for part in self.sampling)),
            self.table.index_select(0, order),
        )

    def below(self, depth: int, wide: int) -> Tensor:  # [B, wide, V]
        """Return the noise for the children of `wide` nodes at this depth."""
        return self.table[:, depth : depth + 1].expand(-1, wide, -1)


def draft_tree(
    draft: Decoder,
    shape: Branches,
    entry: Tensor,
    seen: Seen,
    rows: Tensor | None,
    past: KeysValues,
    draws: Draws | None,
    by: Arithmetic,
) -> Drafted:
    """Grow the tree level by level.

    entry: [B, 2] int32, a token that the draft has not seen yet (or padding), then the root
    seen: for the two entry nodes and the tree's inner nodes
    """
    levels, level, new, first = [entry[:, 1:]], entry, None, 0
    for depth, (wide, branch) in enumerate(zip(shape.levels, shape.branches, strict=False)):
        last = first + level.shape[1]
        near = (
            seen.positions[:, first:last],
            seen.context_mask,
            seen.tree_mask[:, first:last, :last],
        )
        out: Hidden = draft(level, rows, *near, None, past.keys, past.values, new)
        logits = draft.logits(out.states[:, -wide:])
        ids = (
            guess_greedy(logits, branch, by)
            if draws is None
            else guess_drawn(logits, draws.sampling, draws.below(depth, wide), branch, by)
        )
        new = _joined(new, out)
        level, first = ids.flatten(1), last
        levels.append(level)
    assert new is not None
    return Drafted(torch.cat(levels, 1), new)


def _joined(earlier: KeysValues | None, out: Hidden) -> KeysValues:
    if earlier is None:
        return KeysValues(out.keys, out.values)
    return KeysValues(
        torch.cat((earlier.keys, out.keys), 3), torch.cat((earlier.values, out.values), 3)
    )


def accept_in_graph(shape: Branches, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the target's choices in trees of one shape, as accept_match does.

    tokens, chosen: [B, nodes] int32; siblings are distinct, so each level has at most one match

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
