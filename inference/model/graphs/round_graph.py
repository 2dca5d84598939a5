"""A fused round as a graph: the draft grows a tree of a fixed shape, the target chooses a token at
every node, and matches are accepted (accept_matches(), unrolled). The draft ranks with the target's
noise, which couples its proposals to the target's choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from inference.files.artifact import Bucket, DraftBucket, RoundBucket
from inference.model.cache import CachedGraph, KeysValues
from inference.model.choice.arithmetic import ENGINES, HOST, Arithmetic
from inference.model.choice.graph_choice import KeepsNoise, MaskInputs
from inference.model.choice.sampler import Sampling, guess_drawn, guess_greedy, noise_table
from inference.model.decoder import Decoder, Hidden
from inference.model.graphs.verify_graph import NodeRows, choice, example_inputs, together
from inference.tree.tree_shape import NONE, Branches

DRAFT = "draft_"
"""Prefix of the draft's caches and inputs in a fused graph."""

# fmt: off
INPUTS = (
    "rows", "slots", "positions", "context_mask", "tree_mask",
    "draft_tokens", "draft_rows", "draft_slots", "draft_positions", "draft_context_mask",
    "draft_tree_mask", "temperature", "top_k", "top_p", "seed", "min_p",
)
# fmt: on
"""Inputs of a round in order. A greedy round does not have the last five."""


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
    at: NodeRows,
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
    levels, level, new, first = [entry[:, 1:]], entry, None, 0
    for depth, (wide, branch) in enumerate(zip(shape.levels, shape.branches, strict=False)):
        last = first + level.shape[1]
        positions, mask = at.positions[:, first:last], at.tree_mask[:, first:last, :last]
        out: Hidden = draft(level, at.rows, positions, at.context_mask, mask, None, cache, new)
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


class _Fused(CachedGraph):
    arithmetic = HOST

    def __init__(
        self,
        decoder: Decoder,
        draft: Decoder,
        cache: KeysValues,
        draft_cache: KeysValues,
        shape: Branches,
    ) -> None:
        super().__init__()
        self.decoder, self.draft, self.shape = decoder, draft, shape
        self.hold(cache)
        self.hold(draft_cache, DRAFT)

    def _made(
        self, entry: Tensor, target: NodeRows, draft: NodeRows, sampling: Sampling | None
    ) -> tuple[Tensor, KeysValues, KeysValues]:
        """Return the answer of a round, and new keys and values of the target and of the draft.

        The answer is [B, nodes - 1 + depth + 1] int32: drafted tokens, accepted nodes, next token.

        entry: [B, 2] int32, a token that the draft has not computed yet (or padding), then the root
        """
        by = self.arithmetic
        draws = None if sampling is None else Draws(sampling, self._table(sampling, target))
        past = self.cache(DRAFT)
        tokens, drafted = draft_tree(self.draft, self.shape, entry, draft, past, draws, by)
        out: Hidden = self.decoder(tokens, *target, None, self.cache())
        logits = self.decoder.logits(out.states)
        drawn = None
        if draws is not None:
            levels = enumerate(self.shape.levels)
            drawn = torch.cat([draws.below(depth, wide) for depth, wide in levels], 1)
        chosen = choice(self.decoder, logits, sampling, drawn, None, by)
        path, next_token = accept_in_graph(self.shape, tokens, chosen)
        return torch.cat((tokens[:, 1:], path, next_token[:, None]), 1), out.new, drafted

    def _table(self, sampling: Sampling, target: NodeRows) -> Tensor:  # [B, depth + 1, V]
        """Return the noise at the positions below each row's root, the first node of the row."""
        raise NotImplementedError


class RoundGraph(_Fused):
    """A round that reads the caches. The caller writes the new keys and values at the slots."""

    def forward(
        self,
        rows: Tensor,  # [B] int32, cache rows of the target
        slots: Tensor,  # [B, nodes] int32, slots for the target's new keys
        positions: Tensor,  # [B, nodes] int32
        context_mask: Tensor,  # [B, 1, S] int32 0/1
        tree_mask: Tensor,  # [B, nodes, nodes] int32 0/1
        draft_tokens: Tensor,  # [B, 2] int32, pending token (or padding) and root
        # The draft's inputs are alike: its nodes are the two entry nodes and the inner nodes.
        draft_rows: Tensor,
        draft_slots: Tensor,
        draft_positions: Tensor,
        draft_context_mask: Tensor,
        draft_tree_mask: Tensor,
        temperature: Tensor | None = None,  # [B] float32
        top_k: Tensor | None = None,  # [B] int32
        top_p: Tensor | None = None,  # [B] float32
        seed: Tensor | None = None,  # [B, 2] int32
        min_p: Tensor | None = None,  # [B] float32
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the answer, new keys and values of the target, and new keys and values of the
        draft, each [layers, B, nodes, width].
        """
        answer, new, drafted = self._made(
            draft_tokens,
            NodeRows(rows, positions, context_mask, tree_mask),
            NodeRows(draft_rows, draft_positions, draft_context_mask, draft_tree_mask),
            together(Sampling, temperature, top_k, top_p, seed, min_p),
        )
        return answer, *new.stacked(), *drafted.stacked()

    def _table(self, sampling: Sampling, target: NodeRows) -> Tensor:
        first, ids = target.positions[:, :1] + 1, self.decoder.token_ids()
        return noise_table(sampling, first, self.shape.depth + 1, ids, self.arithmetic)


class StatefulRoundGraph(KeepsNoise, _Fused):
    """A round that reassigns its caches and returns a single tensor.

    All graphs of a package are traced from the same module and signature, so the inputs that are
    present select the operation:
    - All inputs of a RoundGraph: a round.
    - Only the target's or the draft's inputs: a StatefulGraph of that model.
    - Only `rows` [2]: copy the first row to the second in all caches.
    - Only `rows` [N], `after` [N, 1] and `seed` [N, 2]: compute the noise at these places of the
      target's rows.

    window: noise [rows * WINDOW, V]; None if all calls are greedy
    """

    arithmetic = ENGINES

    def __init__(
        self,
        decoder: Decoder,
        draft: Decoder,
        cache: KeysValues,
        draft_cache: KeysValues,
        shape: Branches,
        window: Tensor | None,
    ) -> None:
        super().__init__(decoder, draft, cache, draft_cache, shape)
        self.hold_noise(window)

    def forward(
        self,
        rows: Tensor | None = None,
        tokens: Tensor | None = None,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
        context_mask: Tensor | None = None,
        tree_mask: Tensor | None = None,
        pick: Tensor | None = None,
        after: Tensor | None = None,
        draft_tokens: Tensor | None = None,
        draft_rows: Tensor | None = None,
        draft_slots: Tensor | None = None,
        draft_positions: Tensor | None = None,
        draft_context_mask: Tensor | None = None,
        draft_tree_mask: Tensor | None = None,
        draft_pick: Tensor | None = None,
        temperature: Tensor | None = None,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        seed: Tensor | None = None,
        min_p: Tensor | None = None,
        allowed: Tensor | None = None,
        text_ids: Tensor | None = None,
        text_changes: Tensor | None = None,
        node_ids: Tensor | None = None,
        node_changes: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> Tensor:
        """Return the answer of a round [B, nodes - 1 + depth + 1], or the output of a
        StatefulGraph; a tensor without meaning after copying rows or computing noise.
        """
        sampling = together(Sampling, temperature, top_k, top_p, seed, min_p)
        target = _part(tokens, pick, slots, rows, positions, context_mask, tree_mask)
        draft_sight = (draft_rows, draft_positions, draft_context_mask, draft_tree_mask)
        draft = _part(draft_tokens, draft_pick, draft_slots, *draft_sight)
        if target is None and draft is None:
            assert rows is not None, "no inputs"
            return self._between(rows, after, seed)
        self.touch_noise()
        if target is None:
            assert draft is not None, "checked above"
            return self._alone(self.draft, DRAFT, draft, None, None, None)
        if draft is None:
            changes = (allowed, text_ids, text_changes, node_ids, node_changes, asked)
            masks = together(MaskInputs, *changes)
            return self._alone(self.decoder, "", target, after, sampling, masks)
        assert draft.tokens is not None, "the draft starts from a root"
        answer, new, drafted = self._made(draft.tokens, target.at, draft.at, sampling)
        self.write(target.at.rows, target.slots, new)
        self.write(draft.at.rows, draft.slots, drafted, DRAFT)
        return answer

    def _between(self, rows: Tensor, after: Tensor | None, seed: Tensor | None) -> Tensor:
        """Compute noise if there are positions and seeds, otherwise copy a row."""
        if after is not None and seed is not None:
            self.fill_noise(rows, after, seed, self.decoder.token_ids(), self.arithmetic)
            self.touch(rows)
            self.touch(rows, DRAFT)
        else:
            self.touch_noise()
            for which in ("", DRAFT):
                self.copy_row(rows[:1], rows[1:], which)
        return rows + rows

    def _table(self, sampling: Sampling, target: NodeRows) -> Tensor:
        steps = torch.arange(1, self.shape.depth + 2, dtype=torch.int32, device=target.rows.device)
        positions = target.positions[:, :1] + steps
        return sampling.weigh(self.noise_at(target.rows, positions))

    def _alone(
        self,
        model: Decoder,
        which: str,
        inputs: _ModelInputs,
        after: Tensor | None,
        sampling: Sampling | None,
        masks: MaskInputs | None,
    ) -> Tensor:
        """Run one of the models, and write the junk slot of the other one: all graphs of a package
        must reassign all state.
        """
        assert inputs.tokens is not None, "nothing to look at"
        rows = inputs.at.rows
        out: Hidden = model(inputs.tokens, *inputs.at, inputs.pick, self.cache(which))
        logits = model.logits(out.states)
        drawn = None if sampling is None or after is None else self.noise_at(rows, after)
        chosen = choice(model, logits, sampling, drawn, masks, self.arithmetic)
        self.write(rows, inputs.slots, out.new, which)
        self.touch(rows[:1], DRAFT if which == "" else "")
        return chosen


class _ModelInputs(NamedTuple):
    """The inputs of one model. In a round, the target's tokens are drafted inside the graph."""

    tokens: Tensor | None
    slots: Tensor
    at: NodeRows
    pick: Tensor | None


def _part(
    tokens: Tensor | None, pick: Tensor | None, slots: Tensor | None, *at: Tensor | None
) -> _ModelInputs | None:
    """Collect the inputs of a model; None if the call does not use it."""
    rows = together(NodeRows, *at)
    return None if slots is None or rows is None else _ModelInputs(tokens, slots, rows, pick)


def round_inputs(bucket: RoundBucket) -> dict[str, Tensor]:
    """Return the inputs of an idle round by parameter name: every node is written to the junk slot
    and sees itself.
    """
    inputs, entry = example_inputs(bucket), 1 + bucket.shape.inner
    beside = example_inputs(Bucket(bucket.rows, entry, bucket.slots, entry, 1, False, bucket.junk))
    # compiled graphs assume the memory layout of their inputs
    beside["tokens"] = beside["tokens"][:, :2].contiguous()
    merged = inputs | under_draft_names(beside)
    return {name: merged[name] for name in INPUTS if name in merged}


def idle_inputs(bucket: Bucket) -> dict[str, Tensor]:
    """Return the inputs of an idle call of any stateful graph, by parameter name."""
    if isinstance(bucket, RoundBucket):
        return round_inputs(bucket)
    inputs = example_inputs(bucket)
    return under_draft_names(inputs) if isinstance(bucket, DraftBucket) else inputs


def under_draft_names(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename inputs to StatefulRoundGraph's parameters for the draft."""
    return {f"{DRAFT}{name}": tensor for name, tensor in inputs.items()}
