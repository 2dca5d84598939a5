"""A causal model of the transformers library as a Model, with keys in slots and trees by masks. The
library uses Outrider's cache class, so experts, windows and sinks need no separate code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from inference.backends import Segment
from inference.backends.eager import BatchTensors, SlotModel
from inference.backends.libraries.running_states import LayerStates, RunningStates
from inference.backends.sequence import ModelSequence, Slots
from inference.model.cache import KeysValues, read_rows, write_slots, write_states
from inference.model.checkpoints.library_config import Reach
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree


class SlotCache(Cache):
    """The cache that the library uses in a forward pass: cached keys, then those of new nodes.

    caches: caches of the layers that have keys
    places: index in `caches`, by the library's layer number
    rows: [B] cache rows
    slots: number of leading slots to read
    """

    def __init__(
        self, caches: KeysValues, places: Mapping[int, int], rows: Tensor, slots: int
    ) -> None:
        super().__init__(layers=[])
        self.new: dict[int, tuple[Tensor, Tensor]] = {}
        self._held, self._places, self._rows, self._slots = caches, places, rows, slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [B, heads, T, size]; return cached and new ones."""
        self.new[layer_idx] = (_by_node(key_states), _by_node(value_states))
        place = self._places.get(layer_idx)
        if place is None:
            return key_states, value_states
        keys, values = self._held.keys[place], self._held.values[place]
        return self._behind(keys, key_states), self._behind(values, value_states)

    def written(self) -> KeysValues:
        """Return keys and values of the new nodes, in the order of `caches`."""
        pairs = [self.new[layer] for layer in self._places]
        return KeysValues(tuple(keys for keys, _ in pairs), tuple(values for _, values in pairs))

    def _behind(self, cache: Tensor, new: Tensor) -> Tensor:  # [B, heads, S + T, size]
        batch, heads, _, size = new.shape
        past = read_rows(cache, self._rows, self._slots).view(batch, -1, heads, size)
        return torch.cat((past.transpose(1, 2), new), 2)


def _by_node(states: Tensor) -> Tensor:  # [B, heads, T, size] -> [B, T, heads * size]
    return states.transpose(1, 2).flatten(2)


class TransformersModel(SlotModel):
    """A causal model of the library with Outrider's KV caches.

    library: the model, with eager attention
    reaches: see LibraryConfig
    vocabulary: number of token ids of the tokenizer; higher ids are never chosen
    """

    def __init__(
        self,
        library: nn.Module,
        reaches: Mapping[str, Reach],
        *,
        rows: int,
        capacity: int,
        max_nodes: int,
        vocabulary: int,
    ) -> None:
        trial = _Trial.of(library, reaches)
        layers, slots = dict(sorted(trial.new.items())), (rows, capacity + 1)
        cache = KeysValues.of(
            pair[side].new_zeros((*slots, pair[side].shape[-1]))
            for side in (0, 1)
            for pair in layers.values()
        )
        super().__init__(cache, rows=rows, capacity=capacity, max_nodes=max_nodes)
        self.library, self.reaches, self.vocabulary = library, reaches, vocabulary
        self._places = {layer: place for place, layer in enumerate(layers)}
        # Position and token of each slot: windows need positions, since slots are unordered.
        self._known = torch.zeros((*slots, 2), dtype=torch.int32, device=self.device)
        self._known[..., 0] = torch.arange(slots[1])  # for unwritten slots
        config: Any = library.config
        width = config.get_text_config().hidden_size
        self.branches = not trial.mixers  # with states, each line of a tree is computed separately
        self._states = RunningStates(trial.mixers, width, *slots, cache.keys[0])

    @property
    def by_slot(self) -> tuple[Tensor, ...]:
        return (*self.cache.tensors, *self._states.by_slot, self._known)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        super().copy_row(source, target, slots)
        self._states.copy_row(source, target)

    def logits_of(self, prompt: Sequence[int], tree: TokenTree) -> Tensor:  # [n, V]
        """Return the logits at every node of a tree after a prompt on row 1, in unordered slots.
        Row 0 has a different prompt.
        """
        slots = Slots(self.capacity)
        slots.take(np.zeros(2, dtype=np.int32))  # the tree will use these slots
        neighbour = ModelSequence(self, 0, SamplingParams())
        sequence = ModelSequence(self, 1, SamplingParams(), slots)
        neighbour.extend(prompt[:1])
        sequence.extend(prompt)
        call = [neighbour.prepare(TokenTree.chain(prompt[1:])), sequence.prepare(tree)]
        return self._forward(call)[0][1]

    def _forward(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        with self._states.during(segments, self._known):
            return super()._forward(segments)

    def _write(self, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        rows, tokens, slots, positions, context_mask, tree_mask, pick = batch
        width = context_mask.shape[-1]
        cache = SlotCache(self.cache, self._places, rows, width)
        past = read_rows(self._known, rows, width)[..., 0]
        sees = torch.cat((context_mask.expand(-1, tokens.shape[1], -1), tree_mask), -1)
        picked, places = self._head_nodes(pick)
        output = self.library(
            input_ids=tokens.long(),
            position_ids=positions.long(),
            attention_mask=_masks(
                self.reaches, sees, positions, torch.cat((past, positions), 1), self.dtype
            ),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=picked,
        )
        write_slots(self.cache, rows, slots, cache.written())
        write_states(self._known, rows, slots, torch.stack((positions, tokens), -1))
        logits = output.logits[..., : self.vocabulary].float()  # [B, picked, V]
        if places is not None:
            logits = torch.gather(logits, 1, places[..., None].expand(-1, -1, logits.shape[-1]))
        return logits, torch.gather(positions, 1, pick.long()) + 1

    def _head_nodes(self, pick: Tensor) -> tuple[Tensor | int, Tensor | None]:
        """Return the nodes whose logits are computed in every row, and the indices [B, P] of the
        picks among them (None for a single row).
        """
        if len(pick) == 1:
            return pick[0], None
        picked, places = pick.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        return picked, places


def _masks(
    reaches: Mapping[str, Reach], visible: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """Return attention biases [B, 1, T, n]; by type of layer if the model has several types.

    visible: [B, T, n] 0/1, the mask without limits of reach
    queries, keys: positions [B, T] and [B, n]
    """
    masks = {}
    for kind, (window, chunk) in reaches.items():
        allowed = visible.bool()
        if window is not None:
            allowed = allowed & (queries[:, :, None] - keys[:, None] < window)
        if chunk is not None:
            allowed = allowed & (queries[:, :, None] // chunk == keys[:, None] // chunk)
        zero = torch.zeros((), dtype=dtype, device=visible.device)
        masks[kind] = torch.where(allowed, zero, torch.finfo(dtype).min)[:, None]
    return masks.get("", masks)


class _Trial(LayerStates):
    """Finds the layers with keys and the layers with states by a forward pass.

    new: keys and values of two tokens by layer, except layers that share another layer's keys
    mixers: modules with a state, by layer
    """

    def __init__(self) -> None:
        super().__init__({})
        self.new: dict[int, tuple[Tensor, Tensor]] = {}
        self.mixers: dict[int, nn.Module] = {}
        self._entered = nn.Module()

    @classmethod
    def of(cls, library: nn.Module, reaches: Mapping[str, Reach]) -> _Trial:
        """Run the forward pass. Raises ValueError if no layer has keys."""
        parameter, trial = next(library.parameters()), cls()
        ids = torch.arange(2, device=parameter.device)[None]
        visible = torch.tril(torch.ones((1, 2, 2), device=parameter.device))
        hooks = [
            module.register_forward_pre_hook(trial._enter)
            for module in library.modules()
            if hasattr(module, "layer_idx")
        ]
        with torch.no_grad():
            library(
                input_ids=ids,
                position_ids=ids,
                attention_mask=_masks(reaches, visible, ids, ids, parameter.dtype),
                past_key_values=trial,
                use_cache=True,
            )
        for hook in hooks:
            hook.remove()
        if not trial.new:
            raise ValueError("no layer keeps keys and values")
        return trial

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.new[layer_idx] = (_by_node(key_states), _by_node(value_states))
        return key_states, value_states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        self.mixers[layer_idx] = self._entered

    get_recurrent_state = get_conv_state

    def _enter(self, module: nn.Module, arguments: object) -> None:
        self._entered = module
