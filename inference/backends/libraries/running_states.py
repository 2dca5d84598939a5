"""Layers of the transformers library with a running state instead of keys: linear attention, Mamba
and short convolutions.

The inputs of such layers are stored by slot, like keys, so the state after any node can be
recomputed, and rows can be copied and cut. A few states of each row are stored to limit that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache

from inference.backends import Segment
from inference.backends.libraries.tree_lines import BEHIND, begins, lines_of, path_of, thinned
from inference.tree.token_tree import IntArray

States: TypeAlias = dict[tuple[str, int], Tensor]
"""States of a layer [L, ...], by kind and number; empty at the beginning of a sequence."""


class LayerStates(Cache):
    """The states of a layer, as a cache that the library reads and updates."""

    def __init__(self, states: States) -> None:
        super().__init__(layers=[])
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Store inputs of a convolution [L, width, M]; return earlier inputs followed by them."""
        size = conv_kernel_size or conv_states.shape[-1]
        before = self.states.get(("conv", state_idx))
        if before is None:
            missing = max(size - conv_states.shape[-1], 0)
            before = conv_states.new_zeros((*conv_states.shape[:-1], missing))
        inputs = torch.cat((before, conv_states), -1)
        self.states["conv", state_idx] = inputs[..., -size:].clone()
        return inputs

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class KeptStates(NamedTuple):
    """The states of all layers after the first tokens [n] of a row."""

    tokens: IntArray
    states: dict[int, States]  # by layer, for a single row


class _Span(NamedTuple):
    """A span of a row's tokens between two states.

    segment, nodes: index of the segment, and its new nodes [m] at the end of the span
    end: the state at the end of the span; None if it is not stored
    """

    segment: int
    nodes: NDArray[np.intp]
    row: int
    slots: IntArray  # [M]
    start: KeptStates
    end: KeptStates | None

    @property
    def old(self) -> int:
        """The number of tokens that the span recomputes."""
        return len(self.slots) - len(self.nodes)

    @property
    def form(self) -> tuple[int, bool]:
        """The key by which spans are grouped: spans with equal forms are computed together."""
        return len(self.slots), not len(self.start.tokens)


class _LayerCalls(NamedTuple):
    """The spans of a forward pass, grouped by form and ordered by dependency.

    stored: the states that each row stores after the forward pass
    """

    groups: list[list[_Span]]
    stored: dict[int, list[KeptStates]]


class RunningStates:
    """The states of a model's rows.

    mixers: the library's modules that have a state, by layer
    width: size of the modules' inputs
    like: a tensor with the model's dtype and device
    """

    def __init__(
        self, mixers: Mapping[int, nn.Module], width: int, rows: int, slots: int, like: Tensor
    ) -> None:
        self._mixers = mixers
        self._given = {layer: like.new_zeros((rows, slots, width)) for layer in mixers}
        nothing = KeptStates(np.empty(0, dtype=np.int32), {layer: {} for layer in mixers})
        self._kept = [[nothing] for _ in range(rows)]

    @property
    def by_slot(self) -> tuple[Tensor, ...]:
        """The inputs of each layer by slot, each [rows, slots, width]."""
        return tuple(self._given.values())

    def copy_row(self, source: int, target: int) -> None:
        """Copy the states of row `source` to row `target`."""
        self._kept[target] = self._kept[source]

    @contextmanager
    def during(self, segments: Sequence[Segment], tokens_at: Tensor) -> Iterator[None]:
        """Let the library's layers compute these segments branch by branch from stored states.

        tokens_at: [rows, slots, 2] position and token of each slot
        """
        if not self._mixers:
            yield
            return
        call = self._planned(segments, tokens_at)
        for layer, mixer in self._mixers.items():
            vars(mixer)["forward"] = partial(self._mix, call, layer, mixer.forward)
        try:
            yield
        finally:
            for mixer in self._mixers.values():
                del vars(mixer)["forward"]
        for row, stored in call.stored.items():
            self._kept[row] = stored

    def _planned(self, segments: Sequence[Segment], tokens_at: Tensor) -> _LayerCalls:
        first, sections, stored = list[list[_Span]](), list[_Span](), dict[int, list[KeptStates]]()
        for place, segment in enumerate(segments):
            row, (positions, ids) = segment.row, tokens_at[segment.row].cpu().numpy().T
            common = path_of(positions, np.logical_and.reduce(segment.context))
            states = [state for state in self._kept[row] if begins(state, ids[common])]
            if len(common) - len(states[-1].tokens) > BEHIND:
                start, end = states[-1], KeptStates(ids[common], {})
                again, none = common[len(start.tokens) :], np.empty(0, dtype=np.intp)
                first.append([_Span(place, none, row, again, start, end)])
                states.append(end)
            start, lines = states[-1], list(lines_of(segment, positions))
            for nodes, path in lines:
                slots = np.concatenate((path[len(start.tokens) :], segment.slots[nodes]))
                behind = KeptStates(np.concatenate((ids[path], segment.tokens[nodes])), {})
                last = behind if len(lines) == 1 else None
                sections.append(_Span(place, nodes, row, slots, start, last))
                states += [last] if last else []
            stored[row] = [states[0], *thinned(states[1:])]  # always keep the empty state
        sections.sort(key=lambda section: section.form)
        groups = [list(group) for _, group in groupby(sections, key=lambda section: section.form)]
        return _LayerCalls(first + groups, stored)

    def _mix(
        self, call: _LayerCalls, layer: int, compute: Any, hidden_states: Tensor, **arguments: Any
    ) -> Tensor:  # [B, T, width]
        """Compute a layer at the new nodes. hidden_states: [B, T, width]"""
        inputs, outputs = self._given[layer], torch.zeros_like(hidden_states)
        (name,) = (name for name, value in arguments.items() if isinstance(value, Cache))
        for group in call.groups:
            for span in group:
                inputs[span.row, span.slots[span.old :]] = hidden_states[span.segment, span.nodes]
            # Float32 kernels round differently for matrices with fewer than four rows.
            lines = group * -(-4 // (len(group) * len(group[0].slots)))
            view = LayerStates(_stacked([span.start.states[layer] for span in lines]))
            stacked = torch.stack([inputs[span.row, span.slots] for span in lines])  # [L, M, width]
            out = compute(stacked, **{**arguments, name: view, "attention_mask": None})
            for line, span in enumerate(group):
                outputs[span.segment, span.nodes] = out[line, span.old :]
                if span.end is not None:
                    span.end.states[layer] = {
                        kind: state[line : line + 1].clone() for kind, state in view.states.items()
                    }
        return outputs


def _stacked(states: Sequence[States]) -> States:
    return {kind: torch.cat([state[kind] for state in states]) for kind in states[0]}
