"""A fused round as one graph: the draft grows a tree, the target chooses at every node, matches are
accepted.

The tree has a fixed shape. The draft ranks with the target's own noise, so its guesses are coupled
to the target's choices. Acceptance is accept_match (inference/accept.py), unrolled over the shape.

`RoundGraph` reads both models' caches and returns the new keys and values for its caller to write.
`StatefulRoundGraph` writes them itself, and also serves as every other graph of its package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from inference.artifact import Bucket, DraftBucket, RoundBucket
from inference.model.arithmetic import ENGINES, HOST
from inference.model.decoder import Decoder, Hidden, KeysValues
from inference.model.drafted_tree import Drafted, Draws, Seen, accept_in_graph, draft_tree
from inference.model.sampler import (
    Sampling,
    choose_drawn,
    choose_greedy,
    choose_mixed,
)
from inference.model.verify_graph import (
    example_inputs,
    positions_after,
    sampling_of,
    stateful_inputs,
)
from inference.tree_shape import Branches

CACHES = ("keys", "values", "draft_keys", "draft_values")
"""Buffers of a fused graph: the target's caches, then the draft's."""

# fmt: off
INPUTS = (
    "rows", "slots", "positions", "context_mask", "tree_mask",
    "draft_tokens", "draft_rows", "draft_slots", "draft_positions", "draft_context_mask",
    "draft_tree_mask", "temperature", "top_k", "top_p", "seed",
)
# fmt: on
"""Inputs of a round, in this order. A greedy round lacks the last four."""


class _Fused(nn.Module):
    """Target, draft and the shape of the tree, with the caches of both models.

    A cache is [layers, rows, kv heads, capacity + 1, head dim].
    """

    keys: Tensor
    values: Tensor
    draft_keys: Tensor
    draft_values: Tensor

    arithmetic = HOST

    def __init__(
        self,
        decoder: Decoder,
        draft: Decoder,
        caches: tuple[Tensor, ...],
        shape: Branches,
    ) -> None:
        """caches: in the order of CACHES"""
        super().__init__()
        self.decoder, self.draft, self.shape = decoder, draft, shape
        for name, cache in zip(CACHES, caches, strict=True):
            self.register_buffer(name, cache, persistent=False)

    def _draws(self, sampling: Sampling | None, seen: Seen) -> Draws | None:
        return Draws.of(sampling, seen, self.shape, self.decoder.vocabulary, self.arithmetic)

    def _draft(
        self, entry: Tensor, seen: Seen, rows: Tensor | None, draws: Draws | None
    ) -> Drafted:
        return draft_tree(
            self.draft,
            self.shape,
            entry,
            seen,
            rows,
            KeysValues(self.draft_keys, self.draft_values),
            draws,
            self.arithmetic,
        )

    def _verify(
        self, tokens: Tensor, seen: Seen, rows: Tensor | None, draws: Draws | None
    ) -> tuple[Tensor, KeysValues]:
        """Return the round's answer, and the target's new keys and values.

        The answer is [B, nodes - 1 + depth + 1] int32: drafted tokens, accepted nodes, next token.
        """
        out: Hidden = self.decoder(tokens, rows, *seen, None, self.keys, self.values)
        logits = self.decoder.logits(out.states)
        if draws is None:
            chosen = choose_greedy(logits)
        else:
            drawn = torch.cat(
                [draws.below(depth, wide) for depth, wide in enumerate(self.shape.levels)], 1
            )
            chosen = choose_drawn(logits, draws.sampling, drawn, self.arithmetic)
        path, next_token = accept_in_graph(self.shape, tokens, chosen)
        return torch.cat((tokens[:, 1:], path, next_token[:, None]), 1), KeysValues(
            out.keys, out.values
        )


class RoundGraph(_Fused):
    """A round that reads the caches. Its caller writes the new keys and values at the slots."""

    def forward(
        self,
        rows: Tensor,  # [B] int32, the target's cache row of each
        slots: Tensor,  # [B, nodes] int32, where the target's new keys belong
        positions: Tensor,  # [B, nodes] int32
        context_mask: Tensor,  # [B, 1, S] int32 0/1
        tree_mask: Tensor,  # [B, nodes, nodes] int32 0/1
        draft_tokens: Tensor,  # [B, 2] int32, pending token (or padding) and root
        # The draft's inputs have these shapes, too: its nodes are the entry and the inner nodes.
        draft_rows: Tensor,
        draft_slots: Tensor,
        draft_positions: Tensor,
        draft_context_mask: Tensor,
        draft_tree_mask: Tensor,
        temperature: Tensor | None = None,  # [B] float32
        top_k: Tensor | None = None,  # [B] int32
        top_p: Tensor | None = None,  # [B] float32
        seed: Tensor | None = None,  # [B, 2] int32
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the answer, then the new keys and values in the order of CACHES."""
        seen = Seen(positions, context_mask, tree_mask)
        draws = self._draws(sampling_of(temperature, top_k, top_p, seed), seen)
        drafted = self._draft(
            draft_tokens,
            Seen(draft_positions, draft_context_mask, draft_tree_mask),
            draft_rows,
            draws,
        )
        answer, new = self._verify(drafted.tokens, seen, rows, draws)
        return answer, *new, *drafted.new


class StatefulRoundGraph(_Fused):
    """A round that reassigns its caches and returns one tensor.

    Every row of the caches takes part in every call, in its order. The inputs that are given select
    the operation:
    - All inputs of a RoundGraph: a round.
    - The target's inputs alone, or the draft's alone: a VerifyGraph of that model.
    - `rows` alone: row i of every cache becomes what row rows[i] was.

    In a round, a text has one row of the target and one of the draft. draft_rows[i] is the draft's
    row for the target's row i. rows[j] is the target's row for the draft's row j.
    """

    arithmetic = ENGINES
    levels = 1
    """Positions that noise is made for where the target alone chooses."""

    def forward(
        self,
        rows: Tensor | None = None,
        tokens: Tensor | None = None,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
        context_mask: Tensor | None = None,
        tree_mask: Tensor | None = None,
        pick: Tensor | None = None,
        first: Tensor | None = None,
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
    ) -> Tensor:
        """Return a round's answer [B, nodes - 1 + depth + 1], or the chosen tokens [B, P].

        After copying rows, the returned tensor is meaningless.
        """
        sampling = sampling_of(temperature, top_k, top_p, seed)
        target = _part(tokens, slots, positions, context_mask, tree_mask, pick)
        draft = _part(
            draft_tokens,
            draft_slots,
            draft_positions,
            draft_context_mask,
            draft_tree_mask,
            draft_pick,
        )
        if target is not None and draft is not None and rows is not None and draft_rows is not None:
            return self._round(target, draft, rows, draft_rows, sampling)
        if target is not None:
            return self._alone(self.decoder, "", target, sampling, first)
        if draft is not None:
            return self._alone(self.draft, "draft_", draft, sampling, None)
        assert rows is not None, "no inputs"
        return self._copied(rows)

    def _round(
        self,
        target: _Part,
        draft: _Part,
        rows: Tensor,
        draft_rows: Tensor,
        sampling: Sampling | None,
    ) -> Tensor:
        assert draft.tokens is not None, "the draft starts from a root"
        draws = self._draws(sampling, target.seen)
        drafted = self._draft(
            draft.tokens, draft.seen, None, None if draws is None else draws.rows(rows)
        )
        answer, new = self._verify(
            drafted.tokens.index_select(0, draft_rows), target.seen, None, draws
        )
        self._write("", target.slots, new)
        self._write("draft_", draft.slots, drafted.new)
        return answer

    def _alone(
        self,
        model: Decoder,
        which: str,
        part: _Part,
        sampling: Sampling | None,
        first: Tensor | None,
    ) -> Tensor:
        """Run one model by itself.

        The other model's junk slots are written, too: every graph of a package has the same state.
        """
        assert part.tokens is not None, "nothing to look at"
        out: Hidden = model(
            part.tokens,
            None,
            *part.seen,
            part.pick,
            getattr(self, f"{which}keys"),
            getattr(self, f"{which}values"),
        )
        logits = model.logits(out.states)
        after = positions_after(part.seen.positions, part.pick, first, self.levels)
        chosen = (
            choose_greedy(logits)
            if sampling is None
            else choose_mixed(logits, sampling, after, self.levels, self.arithmetic)
        )
        self._write(which, part.slots, KeysValues(out.keys, out.values))
        other = "" if which else "draft_"
        self._write(
            other, torch.full_like(part.slots[:, :1], self.keys.shape[3] - 1), self._nothing(other)
        )
        return chosen

    def _write(self, which: str, slots: Tensor, new: KeysValues) -> None:
        """Write new [layers, B, kv heads, n, head dim] into the model's caches at slots [B, n]."""
        index = slots[None, :, None, :, None].expand(new.keys.shape)
        setattr(
            self, f"{which}keys", torch.scatter(getattr(self, f"{which}keys"), 3, index, new.keys)
        )
        setattr(
            self,
            f"{which}values",
            torch.scatter(getattr(self, f"{which}values"), 3, index, new.values),
        )

    def _nothing(self, which: str) -> KeysValues:
        """Return keys and values for a junk slot: the first slot's, which are finite."""
        return KeysValues(
            getattr(self, f"{which}keys")[:, :, :, :1], getattr(self, f"{which}values")[:, :, :, :1]
        )

    def _copied(self, rows: Tensor) -> Tensor:
        for name in CACHES:
            setattr(self, name, getattr(self, name).index_select(1, rows))
        return rows + rows


class _Part(NamedTuple):
    """One model's inputs of a call.

    In a round, the target's tokens are drafted inside the graph, and both models pick all nodes.
    """

    tokens: Tensor | None
    slots: Tensor
    seen: Seen
    pick: Tensor | None


def _part(
    tokens: Tensor | None,
    slots: Tensor | None,
    positions: Tensor | None,
    context_mask: Tensor | None,
    tree_mask: Tensor | None,
    pick: Tensor | None,
) -> _Part | None:
    """Return the model's inputs together; None where it takes no part in the call."""
    if slots is None or positions is None or context_mask is None or tree_mask is None:
        return None
    return _Part(tokens, slots, Seen(positions, context_mask, tree_mask), pick)


def round_inputs(bucket: RoundBucket) -> dict[str, Tensor]:
    """Return the inputs of an idle round of this bucket, by parameter name.

    Every node is written to the junk slot and sees itself.
    """
    inputs, entry = example_inputs(bucket), 1 + bucket.shape.inner
    beside = example_inputs(Bucket(bucket.rows, entry, bucket.slots, entry, 1, False, bucket.junk))
    beside["tokens"] = beside["tokens"][
        :, :2
    ].contiguous()  # compiled graphs take for granted how their inputs lie
    del inputs["tokens"], inputs["pick"], beside["pick"]
    given = inputs | under_draft_names(beside)
    return {name: given[name] for name in INPUTS if name in given}


def draft_inputs(bucket: DraftBucket) -> dict[str, Tensor]:
    """Return the inputs of an idle call of the draft alone, by StatefulRoundGraph's parameter
    names.
    """
    return under_draft_names(stateful_inputs(bucket))


def under_draft_names(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a graph's inputs to those that StatefulRoundGraph takes for the draft."""
    return {f"draft_{name}": tensor for name, tensor in inputs.items()}
