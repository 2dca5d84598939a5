"""The modules that are compiled: a Decoder with sampling, for the fixed shapes of a bucket.

The inputs that are present select the operation, because all graphs of a package share state and
signature. Without `pick` they choose at every node. Without the sampling inputs they are greedy;
with them they serve any mixture of rows. With MaskInputs, they adjust the logits and return the
result of choose_scored(). With feature layers, they also return these layers' inputs at every node,
complete on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from inference.files.artifact import Bucket
from inference.model.cache import CachedGraph, KeysValues
from inference.model.choice.arithmetic import ENGINES, HOST, Arithmetic
from inference.model.choice.graph_choice import KeepsNoise, MaskInputs, choose_scored, idle_masks
from inference.model.choice.sampler import Sampling, choose_drawn, choose_greedy, shared_noise
from inference.model.decoder import Decoder, Hidden

Inputs = TypeVar("Inputs", bound=tuple[Tensor, ...])


class NodeRows(NamedTuple):
    """Cache rows, positions and masks of a model's new nodes."""

    rows: Tensor  # [B] int32
    positions: Tensor  # [B, n] int32
    context_mask: Tensor  # [B, 1, S] int32 0/1
    tree_mask: Tensor  # [B, n, n] int32 0/1


class _ChoosingGraph(CachedGraph):
    """A Decoder with caches and sampling. A bucket reads the first `bucket.slots` slots.

    feature_layers: layers whose inputs are returned as features
    """

    arithmetic = HOST

    def __init__(self, decoder: Decoder, cache: KeysValues, feature_layers: Sequence[int]) -> None:
        super().__init__()
        self.decoder, self._feature_layers = decoder, tuple(feature_layers)
        self.hold(cache)

    def _drawn(self, rows: Tensor, after: Tensor, sampling: Sampling) -> Tensor:  # [B, P, V]
        """Return the noise at positions [B, P], which rows with temperature 0 ignore."""
        raise NotImplementedError

    def _run(
        self,
        tokens: Tensor,
        at: NodeRows,
        pick: Tensor | None,
        after: Tensor | None,
        sampling: Sampling | None,
        masks: MaskInputs | None,
    ) -> tuple[Tensor, Hidden]:
        """Return the result of choice(), and the decoder's output."""
        out: Hidden = self.decoder(
            tokens, *at, pick, self.cache(), feature_layers=self._feature_layers
        )
        logits, drawn = self.decoder.logits(out.states), None
        if sampling is not None and after is not None:
            drawn = self._drawn(at.rows, after, sampling)
        return choice(self.decoder, logits, sampling, drawn, masks, self.arithmetic), out


def choice(
    decoder: Decoder,
    logits: Tensor,
    sampling: Sampling | None,
    drawn: Tensor | None,
    masks: MaskInputs | None,
    by: Arithmetic,
) -> Tensor:
    """Return the chosen tokens [B, P] int32; with masks, the joined result of choose_scored().

    drawn: noise [B, P, V]; without noise or sampling, the choice is greedy
    """
    share = decoder.share
    if sampling is None or drawn is None:
        return choose_greedy(logits, share)
    if masks is None:
        return choose_drawn(logits, sampling, drawn, by, share)
    logits = masks.adjusted(logits, decoder.token_ids(), share, by)
    return choose_scored(logits, sampling, drawn, masks.asked, by, share).joined()


def together(kind: Callable[..., Inputs], *inputs: Tensor | None) -> Inputs | None:
    """Collect inputs in a named tuple; None if any is missing."""
    present = [tensor for tensor in inputs if tensor is not None]
    return kind(*present) if len(present) == len(inputs) else None


class VerifyGraph(_ChoosingGraph):
    """A graph that reads the caches. The caller writes the new keys and values at `slots`.

    levels: number of positions per row for which noise is computed
    """

    def __init__(
        self, decoder: Decoder, cache: KeysValues, levels: int, feature_layers: Sequence[int] = ()
    ) -> None:
        super().__init__(decoder, cache, feature_layers)
        self.levels = levels

    def forward(
        self,
        tokens: Tensor,  # [B, T] int32
        rows: Tensor,  # [B] int32, cache rows
        slots: Tensor,  # [B, T] int32, slots for the new keys
        positions: Tensor,  # [B, T] int32
        context_mask: Tensor,  # [B, 1, S] int32 0/1
        tree_mask: Tensor,  # [B, T, T] int32 0/1
        pick: Tensor | None = None,  # [B, P] int32, nodes at which to choose; None for all
        after: Tensor | None = None,  # [B, P] int32, positions of the tokens to choose
        temperature: Tensor | None = None,  # [B] float32
        top_k: Tensor | None = None,  # [B] int32
        top_p: Tensor | None = None,  # [B] float32
        seed: Tensor | None = None,  # [B, 2] int32
        min_p: Tensor | None = None,  # [B] float32
        allowed: Tensor | None = None,  # this and the following inputs: see MaskInputs
        text_ids: Tensor | None = None,
        text_changes: Tensor | None = None,
        node_ids: Tensor | None = None,
        node_changes: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return chosen tokens [B, P], new keys and new values, each [layers, B, T, width], and
        with feature layers also features [B, T, feature layers * hidden].
        """
        at = NodeRows(rows, positions, context_mask, tree_mask)
        sampling = together(Sampling, temperature, top_k, top_p, seed, min_p)
        changes = (allowed, text_ids, text_changes, node_ids, node_changes, asked)
        masks = together(MaskInputs, *changes)
        chosen, out = self._run(tokens, at, pick, after, sampling, masks)
        features = () if out.features is None else (out.features,)
        return chosen, *out.new.stacked(), *features

    def _drawn(self, rows: Tensor, after: Tensor, sampling: Sampling) -> Tensor:
        ids = self.decoder.token_ids()
        return shared_noise(sampling, after, self.levels, ids, self.arithmetic)


class StatefulGraph(KeepsNoise, _ChoosingGraph):
    """A graph that reassigns its caches and returns chosen tokens [B, P], and with feature layers
    also features [B, T, feature layers * hidden].

    With the inputs of a VerifyGraph it only writes the slots in `slots`. With only `rows` [2] it
    copies the first row to the second. With only `rows` [N], `after` [N, 1] and `seed` [N, 2] it
    computes the noise at these places.

    window: noise [rows * WINDOW, V]; None if all calls are greedy
    """

    arithmetic = ENGINES

    def __init__(
        self,
        decoder: Decoder,
        cache: KeysValues,
        window: Tensor | None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        super().__init__(decoder, cache, feature_layers)
        self.hold_noise(window)

    def forward(
        self,
        rows: Tensor,
        tokens: Tensor | None = None,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
        context_mask: Tensor | None = None,
        tree_mask: Tensor | None = None,
        pick: Tensor | None = None,
        after: Tensor | None = None,
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
    ) -> Tensor | tuple[Tensor, Tensor]:
        at = together(NodeRows, rows, positions, context_mask, tree_mask)
        if at is None or tokens is None or slots is None:
            if after is not None and seed is not None:
                ids = self.decoder.token_ids()
                self.fill_noise(rows, after, seed, ids, self.arithmetic)
                self.touch(rows)
            else:
                self.copy_row(rows[:1], rows[1:])
                self.touch_noise()
            return rows + rows  # a graph must return something; this value is not used
        sampling = together(Sampling, temperature, top_k, top_p, seed, min_p)
        changes = (allowed, text_ids, text_changes, node_ids, node_changes, asked)
        masks = together(MaskInputs, *changes)
        chosen, out = self._run(tokens, at, pick, after, sampling, masks)
        self.write(rows, slots, out.new)
        self.touch_noise()
        return chosen if out.features is None else (chosen, out.features)

    def _drawn(self, rows: Tensor, after: Tensor, sampling: Sampling) -> Tensor:
        return self.noise_at(rows, after)


def copy_inputs(source: int = 0, target: int = 0) -> dict[str, Tensor]:
    """Return the inputs, by name, with which a stateful graph copies a row of its caches."""
    return {"rows": torch.tensor([source, target], dtype=torch.int32)}


def example_inputs(bucket: Bucket) -> dict[str, Tensor]:
    """Return the inputs of an idle call by parameter name: every node is written to the junk slot
    and sees itself.
    """
    rows, nodes = bucket.rows, bucket.nodes
    inputs = {
        "tokens": torch.zeros(rows, nodes, dtype=torch.int32),
        "rows": torch.zeros(rows, dtype=torch.int32),
        "slots": torch.full((rows, nodes), bucket.junk, dtype=torch.int32),
        "positions": torch.zeros(rows, nodes, dtype=torch.int32),
        "context_mask": torch.zeros(rows, 1, bucket.slots, dtype=torch.int32),
        "tree_mask": torch.eye(nodes, dtype=torch.int32).repeat(rows, 1, 1),
    }
    if not bucket.everywhere:
        inputs["pick"] = torch.zeros(rows, bucket.picks, dtype=torch.int32)
    if bucket.sampled:
        inputs |= {
            "after": torch.zeros(rows, bucket.picks, dtype=torch.int32),
            "temperature": torch.zeros(rows),
            "top_k": torch.zeros(rows, dtype=torch.int32),
            "top_p": torch.ones(rows),
            "seed": torch.zeros(rows, 2, dtype=torch.int32),
            "min_p": torch.zeros(rows),
        }
    return inputs | (idle_masks(bucket) if bucket.masked else {})
