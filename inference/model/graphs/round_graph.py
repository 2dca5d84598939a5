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
from inference.model.choice.arithmetic import ENGINES, HOST
from inference.model.choice.graph_choice import KeepsNoise, MaskInputs
from inference.model.choice.sampler import Sampling, noise_table
from inference.model.decoder import Decoder, Hidden
from inference.model.graphs.drafted_tree import (
    CacheRows,
    Draws,
    NodeSight,
    accept_in_graph,
    draft_tree,
)
from inference.model.graphs.verify_graph import choice, example_inputs, together
from inference.tree.tree_shape import Branches

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


class _Fused(CachedGraph):
    """Target, draft, tree shape, and the caches of both models."""

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
        self, entry: Tensor, target: CacheRows, draft: CacheRows, sampling: Sampling | None
    ) -> tuple[Tensor, KeysValues, KeysValues]:
        """Return the answer of a round, and new keys and values of the target and of the draft.

        The answer is [B, nodes - 1 + depth + 1] int32: drafted tokens, accepted nodes, next token.

        entry: [B, 2] int32, a token that the draft has not computed yet (or padding), then the root
        """
        by = self.arithmetic
        draws = None if sampling is None else Draws(sampling, self._table(sampling, target))
        past = self.cache(DRAFT)
        tokens, drafted = draft_tree(self.draft, self.shape, entry, draft, past, draws, by)
        out: Hidden = self.decoder(tokens, target.rows, *target.sight, None, self.cache())
        logits = self.decoder.logits(out.states)
        drawn = None
        if draws is not None:
            levels = enumerate(self.shape.levels)
            drawn = torch.cat([draws.below(depth, wide) for depth, wide in levels], 1)
        chosen = choice(self.decoder, logits, sampling, drawn, None, by)
        path, next_token = accept_in_graph(self.shape, tokens, chosen)
        return torch.cat((tokens[:, 1:], path, next_token[:, None]), 1), out.new, drafted

    def _table(self, sampling: Sampling, target: CacheRows) -> Tensor:  # [B, depth + 1, V]
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
            CacheRows(rows, NodeSight(positions, context_mask, tree_mask)),
            CacheRows(draft_rows, NodeSight(draft_positions, draft_context_mask, draft_tree_mask)),
            together(Sampling, temperature, top_k, top_p, seed, min_p),
        )
        return answer, *new.stacked(), *drafted.stacked()

    def _table(self, sampling: Sampling, target: CacheRows) -> Tensor:
        first, ids = target.sight.positions[:, :1] + 1, self.decoder.token_ids()
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
        StatefulGraph.

        After copying rows or computing noise, the returned tensor is meaningless.
        """
        sampling = together(Sampling, temperature, top_k, top_p, seed, min_p)
        sight = (positions, context_mask, tree_mask)
        target = _part(tokens, pick, rows, slots, *sight)
        draft_sight = (draft_positions, draft_context_mask, draft_tree_mask)
        draft = _part(draft_tokens, draft_pick, draft_rows, draft_slots, *draft_sight)
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
        return self._round(target, draft, sampling)

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

    def _table(self, sampling: Sampling, target: CacheRows) -> Tensor:
        steps = torch.arange(1, self.shape.depth + 2, dtype=torch.int32, device=target.rows.device)
        positions = target.sight.positions[:, :1] + steps
        return sampling.weigh(self.noise_at(target.rows, positions))

    def _round(
        self, target: _ModelInputs, draft: _ModelInputs, sampling: Sampling | None
    ) -> Tensor:
        assert draft.tokens is not None, "the draft starts from a root"
        answer, new, drafted = self._made(draft.tokens, target.at, draft.at, sampling)
        self.write(target.at.rows, target.slots, new)
        self.write(draft.at.rows, draft.slots, drafted, DRAFT)
        return answer

    def _alone(
        self,
        model: Decoder,
        which: str,
        inputs: _ModelInputs,
        after: Tensor | None,
        sampling: Sampling | None,
        masks: MaskInputs | None,
    ) -> Tensor:
        """Run one of the models.

        The junk slot of the other model is written, too, as all graphs of a package must reassign
        all state.
        """
        assert inputs.tokens is not None, "nothing to look at"
        rows, sight = inputs.at
        out: Hidden = model(inputs.tokens, rows, *sight, inputs.pick, self.cache(which))
        logits = model.logits(out.states)
        drawn = None if sampling is None or after is None else self.noise_at(rows, after)
        chosen = choice(model, logits, sampling, drawn, masks, self.arithmetic)
        self.write(rows, inputs.slots, out.new, which)
        self.touch(rows[:1], DRAFT if which == "" else "")
        return chosen


class _ModelInputs(NamedTuple):
    """The inputs of one model. In a round, the target's tokens are drafted inside the graph, and
    both models pick all nodes.
    """

    tokens: Tensor | None
    slots: Tensor
    at: CacheRows
    pick: Tensor | None


def _part(
    tokens: Tensor | None, pick: Tensor | None, rows: Tensor | None, slots: Tensor | None,
    *masks: Tensor | None,
) -> _ModelInputs | None:  # fmt: skip
    """Collect the inputs of a model; None if the call does not use it."""
    sight = together(NodeSight, *masks)
    if rows is None or slots is None or sight is None:
        return None
    return _ModelInputs(tokens, slots, CacheRows(rows, sight), pick)


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
