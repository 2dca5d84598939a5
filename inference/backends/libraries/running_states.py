"""Layers of the transformers library that keep a running state instead of keys: linear attention,
Mamba and short convolutions.

The inputs of such a layer are stored by slot, as keys are. So its state can be computed again
behind any node, and rows are copied and cut as those of other models are. A few states of each
row's text are stored, so that little is computed again. Each line of a tree begins from a copy of
a stored state.
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
from transformers import Cache

from inference.backends import Segment
from inference.backends.libraries.kept_states import BEHIND, begins, thinned
from inference.backends.libraries.tree_lines import lines_of, path_of
from inference.tree.token_tree import IntArray

States: TypeAlias = dict[tuple[str, int], Tensor]
"""States of one layer [L, ...], by kind and number; none where nothing came before."""


class LayerStates(Cache):
    """The library's view of the states of one layer during a call; it updates them."""

    def __init__(self, held: States) -> None:
        super().__init__(layers=[])
        self.held = held

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.held.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.held.get(("recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Store inputs of a convolution [L, width, M]; return them behind the earlier ones."""
        size = conv_kernel_size or conv_states.shape[-1]
        before = self.held.get(("conv", state_idx))
        if before is None:
            missing = max(size - conv_states.shape[-1], 0)
            before = conv_states.new_zeros((*conv_states.shape[:-1], missing))
        whole = torch.cat((before, conv_states), -1)
        self.held["conv", state_idx] = whole[..., -size:].clone()
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self.held["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class KeptStates(NamedTuple):
    """The states of all layers behind the first tokens [n] of a text."""

    tokens: IntArray
    states: dict[int, States]  # of one row, by layer


class _Part(NamedTuple):
    """A part of a row's text, from one state to another.

    segment, nodes: [m] the new nodes at its end
    end: None if it is not kept
    """

    segment: int
    nodes: NDArray[np.intp]
    row: int
    slots: IntArray  # [M]
    start: KeptStates
    end: KeptStates | None

    @property
    def old(self) -> int:
        """The number of its tokens that are computed again."""
        return len(self.slots) - len(self.nodes)

    @property
    def form(self) -> tuple[int, bool]:
        """Parts of one form are computed together."""
        return len(self.slots), not len(self.start.tokens)


class _LayerCalls(NamedTuple):
    """The parts of a forward pass, of one form each, in the order of their dependencies.

    kept: the states that each row keeps afterwards
    """

    groups: list[list[_Part]]
    kept: dict[int, list[KeptStates]]


class RunningStates:
    """The states of a model's rows.

    mixers: modules of the library that keep a state, by layer
    width: of their inputs
    like: a tensor of the model's type, on its device
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
        """Inputs of the layers at each slot, [rows, slots, width] each."""
        return tuple(self._given.values())

    def copy_row(self, source: int, target: int) -> None:
        """Copy the states of row `source` to row `target`."""
        self._kept[target] = self._kept[source]

    @contextmanager
    def during(self, segments: Sequence[Segment], known: Tensor) -> Iterator[None]:
        """Make the library's layers compute these segments branch by branch, each from its state.

        known: [rows, slots, 2] position and token of each slot
        """
        if not self._mixers:
            yield
            return
        call = self._planned(segments, known)
        for layer, mixer in self._mixers.items():
            vars(mixer)["forward"] = partial(self._mix, call, layer, mixer.forward)
        try:
            yield
        finally:
            for mixer in self._mixers.values():
                del vars(mixer)["forward"]
        for row, kept in call.kept.items():
            self._kept[row] = kept

    def _planned(self, segments: Sequence[Segment], known: Tensor) -> _LayerCalls:
        first, parts, kept = list[list[_Part]](), list[_Part](), dict[int, list[KeptStates]]()
        for place, segment in enumerate(segments):
            row, (positions, ids) = segment.row, known[segment.row].cpu().numpy().T
            common = path_of(positions, np.logical_and.reduce(segment.context))
            held = [state for state in self._kept[row] if begins(state, ids[common])]
            if len(common) - len(held[-1].tokens) > BEHIND:
                start, end = held[-1], KeptStates(ids[common], {})
                again, none = common[len(start.tokens) :], np.empty(0, dtype=np.intp)
                first.append([_Part(place, none, row, again, start, end)])
                held.append(end)
            start, lines = held[-1], list(lines_of(segment, positions))
            for nodes, path in lines:
                slots = np.concatenate((path[len(start.tokens) :], segment.slots[nodes]))
                made = KeptStates(np.concatenate((ids[path], segment.tokens[nodes])), {})
                last = made if len(lines) == 1 else None
                parts.append(_Part(place, nodes, row, slots, start, last))
                held += [last] if last else []
            kept[row] = [held[0], *thinned(held[1:])]  # the empty one, too
        parts.sort(key=lambda part: part.form)
        groups = [list(group) for _, group in groupby(parts, key=lambda part: part.form)]
        return _LayerCalls(first + groups, kept)

    def _mix(
        self, call: _LayerCalls, layer: int, compute: Any, hidden_states: Tensor, **given: Any
    ) -> Tensor:  # [B, T, width]
        """Compute a layer at the new nodes. hidden_states: [B, T, width]"""
        held, made = self._given[layer], torch.zeros_like(hidden_states)
        (name,) = (name for name, value in given.items() if isinstance(value, Cache))
        for group in call.groups:
            for part in group:
                held[part.row, part.slots[part.old :]] = hidden_states[part.segment, part.nodes]
            # Float32 kernels for fewer than four rows of a matrix round differently.
            lines = group * -(-4 // (len(group) * len(group[0].slots)))
            states = LayerStates(_stacked([part.start.states[layer] for part in lines]))
            taken = torch.stack([held[part.row, part.slots] for part in lines])  # [L, M, width]
            out = compute(taken, **{**given, name: states, "attention_mask": None})
            for line, part in enumerate(group):
                made[part.segment, part.nodes] = out[line, part.old :]
                if part.end is not None:
                    part.end.states[layer] = {
                        kind: state[line : line + 1].clone() for kind, state in states.held.items()
                    }
        return made


def _stacked(states: Sequence[States]) -> States:
    """Return the states of several lines as one."""
    return {kind: torch.cat([state[kind] for state in states]) for kind in states[0]}
