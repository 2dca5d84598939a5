"""An EAGLE-3 head as a Model, which drafts in its target's process from the target's features.

A node is computed from the target's feature of the preceding token if it is known, otherwise from
the head's output for the parent; then it is computed again once the feature is known. The first
token of a sequence has no preceding feature, so no node sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.batch import BatchShape, check_rows, pad
from inference.backends.eager import rank_at
from inference.backends.graphs.compiled import WEIGHTS
from inference.backends.sequence import FREE, ModelSequence, TargetText
from inference.backends.wrappers import TimedModel
from inference.errors import BadArtifact
from inference.files.artifact import Manifest
from inference.model.cache import empty_cache, write_slots, write_states
from inference.model.checkpoints.config import parse_config
from inference.model.eagle_head import EagleHead
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray, TokenTree, TreeNodes


@runtime_checkable
class FeatureModel(Model, Protocol):
    """A target that can store features for heads: the inputs of some layers."""

    def keep_features(self, layers: Sequence[int]) -> None:
        """From now on, store the inputs of these layers (ascending) for each node. A layer number
        equal to the number of layers means the last layer's output.
        """
        ...

    def features(self, row: int, slots: IntArray) -> Tensor:
        """Return the features [n, layers * hidden] of the nodes in slots [n] of a row."""
        ...


def feature_model(model: Model) -> FeatureModel | None:
    """Return the model, or the real model of an emulation, if it can store features; else None."""
    real = model.real if isinstance(model, TimedModel) else model
    return real if isinstance(real, FeatureModel) else None


class KnownFeatures(NamedTuple):
    """The target's features for a head's segment.

    tokens: number of leading tokens of the sequence whose features are known
    at: returns the features [n, layers * hidden] at known positions [n]
    """

    tokens: int
    at: Callable[[IntArray], Tensor]


class FeatureSequence(ModelSequence):
    """A ModelSequence of a head, whose segments contain KnownFeatures.

    The target stores features by slot, so cached prefixes and copied rows also have features. The
    features of all tokens in the target's row are known.

    beside: returns the session's current row in the target
    """

    def __init__(
        self,
        target: FeatureModel,
        model: Model,
        row: int,
        beside: TargetText | None,
        params: SamplingParams,
    ) -> None:
        assert beside is not None, "a head drafts beside its target"
        super().__init__(model, row, params)
        self._target, self._beside = target, beside

    def prepare_chunk(self, chain: TokenTree) -> Segment:
        return self._with_features(super().prepare_chunk(chain), self.cached + len(chain))

    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment:
        segment = super().prepare_nodes(tree, nodes)  # may prefill pending tokens
        return self._with_features(segment, self.cached)

    def _with_features(self, segment: Segment, below: int) -> Segment:
        """Return the segment with the known features at positions below `below`."""
        count = int(self._beside().slots.committed.sum())
        return segment._replace(beside=KnownFeatures(min(count, below), self._features_at))

    def _features_at(self, positions: IntArray) -> Tensor:
        """Return the features [n, layers * hidden] at known positions [n]."""
        row, slots = self._beside()
        return self._target.features(row, slots.at(positions))


class _Wave(NamedTuple):
    """Nodes of a row that are computed together, and the sources of their features."""

    segment: Segment
    parents: IntArray  # [n] slot of the parent, or FREE
    conditioned: NDArray[np.bool_]  # [n] True: target's feature; False: head's output for parent


class _HeadRow:
    """The token and position of each slot of a row, and whether a target feature was used."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)  # [capacity]
        self._positions = np.zeros(capacity, dtype=np.int32)  # [capacity]
        self._conditioned = np.zeros(capacity, dtype=np.bool_)  # [capacity]

    def waves(self, segment: Segment) -> Iterator[_Wave]:
        """Yield the segment's nodes and the nodes to recompute in waves, parents first."""
        new, featured = segment.slots, segment.beside.tokens if segment.beside else 0
        self._tokens[new], self._positions[new] = segment.tokens, segment.positions
        self._conditioned[new] = False
        again = self._to_recompute(segment.context, featured)
        slots = np.concatenate([again, new])
        visible = self._seen(segment, again, max(segment.context.shape[1], int(slots.max()) + 1))
        positions = self._positions[slots]
        parents = self._parents(visible, positions)
        conditioned = _are_conditioned(positions, featured)
        self._conditioned[slots] = conditioned
        for nodes in _after_parents(slots, parents, positions, conditioned):
            group = slots[nodes]
            context, mask = visible[nodes].copy(), visible[np.ix_(nodes, group)]
            context[:, group] = False
            yield _Wave(
                segment._replace(
                    tokens=self._tokens[group], slots=group, positions=positions[nodes],
                    context=context, tree_mask=mask, pick=np.arange(len(group), dtype=np.int32),
                ),
                parents[nodes],
                conditioned[nodes],
            )  # fmt: skip

    def _to_recompute(self, context: NDArray[np.bool_], featured: int) -> IntArray:  # [m]
        """Return the slots to recompute, by position: slots that all nodes see and that were
        computed before their features were known.
        """
        slots = np.flatnonzero(context.all(0))
        positions = self._positions[slots]
        behind = ~self._conditioned[slots] & _are_conditioned(positions, featured)
        return slots[behind][np.argsort(positions[behind])].astype(np.int32)

    def _seen(
        self, segment: Segment, again: IntArray, size: int
    ) -> NDArray[np.bool_]:  # [m + n, size]
        """Return the slots that each node sees, its own included. Recomputed nodes come first."""
        above, width = len(again), segment.context.shape[1]
        visible = np.zeros((above + len(segment.slots), size), dtype=np.bool_)
        chain = self._positions[:width] <= self._positions[again][:, None]
        visible[:above, :width] = chain & segment.context.all(0)
        visible[above:, :width] = segment.context
        visible[above:, segment.slots] = segment.tree_mask
        nodes = np.concatenate([again, segment.slots])
        visible &= self._positions[:size] > 0
        visible[np.arange(len(nodes)), nodes] = True
        return visible

    def _parents(self, visible: NDArray[np.bool_], positions: IntArray) -> IntArray:  # [n]
        """Return the slot of each node's parent: the visible slot at the preceding position."""
        before = visible & (self._positions[: visible.shape[1]] == positions[:, None] - 1)
        return np.where(before.any(1), before.argmax(1), FREE).astype(np.int32)


def _are_conditioned(positions: IntArray, featured: int) -> NDArray[np.bool_]:  # [n]
    """Return whether the token before each position is one of the first `featured` tokens."""
    return (positions > 0) & (positions <= featured)


def _after_parents(
    slots: IntArray, parents: IntArray, positions: IntArray, conditioned: NDArray[np.bool_]
) -> list[NDArray[np.intp]]:
    """Return the nodes of each wave, those without a parent among these nodes first."""
    wave = dict[int, int]()  # slot -> wave of the slot's node
    for node in np.argsort(positions, kind="stable").tolist():
        above = wave.get(int(parents[node]), -1)
        wave[int(slots[node])] = 0 if conditioned[node] else above + 1
    order = np.array([wave[slot] for slot in slots.tolist()])
    return [(order == level).nonzero()[0] for level in range(int(order.max()) + 1)]


class EagleModel:
    """A head and its caches, with `rows` rows of `capacity` slots. Used by FeatureSequence."""

    masks = branches = True

    def __init__(self, head: EagleHead, *, rows: int, capacity: int, max_nodes: int) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.device, self.dtype = head.fc.weight.device, head.fc.weight.dtype
        self._head = head
        layer = head.config.layer
        self._cache = empty_cache(layer, rows, capacity, self.dtype, self.device)
        self._states = torch.zeros(  # outputs of the last layer; a junk slot is never a parent
            (rows, capacity + 1, layer.hidden_size), dtype=self.dtype, device=self.device
        )
        self._rows = [_HeadRow(capacity) for _ in range(rows)]

    @torch.no_grad()
    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        check_rows(segments)
        row_waves = [list(self._rows[segment.row].waves(segment)) for segment in segments]
        for waves in zip_longest(*row_waves):
            self._compute([wave for wave in waves if wave is not None])
        rows, slots, positions = self._picked(segments)
        logits = self._head.logits(self._states[rows, slots])
        return rank_at(logits, positions + 1, segments, k)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [Chosen(ranked.ids[:, 0]) for ranked in self.rank(segments, 1)]

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError("a head's rows are not copied")

    def _picked(
        self, segments: Sequence[Segment]
    ) -> tuple[Tensor, Tensor, Tensor]:  # [B, 1], [B, P], [B, P]
        """Return rows, slots and positions of the picks, which are repeated in rows with fewer."""
        width = max(len(segment.pick) for segment in segments)
        picks = [np.resize(segment.pick, width) for segment in segments]
        pairs = list(zip(segments, picks, strict=True))
        slots = np.stack([segment.slots[pick] for segment, pick in pairs])
        positions = np.stack([segment.positions[pick] for segment, pick in pairs])
        rows = np.array([[segment.row] for segment in segments])
        return self._tensor(rows), self._tensor(slots).long(), self._tensor(positions)

    def _compute(self, waves: Sequence[_Wave]) -> None:
        """Compute one wave of each row, and write keys, values and states."""
        segments = [wave.segment for wave in waves]
        shape = BatchShape.of(segments)
        batch = pad(segments, shape._replace(slots=max(shape.slots, 1)), junk=self.capacity)
        arrays = {name: self._tensor(array) for name, array in batch.arrays().items()}
        del arrays["pick"]
        slots = arrays.pop("slots")
        out = self._head(**arrays, features=self._features(waves, shape), cache=self._cache)
        write_slots(self._cache, arrays["rows"], slots, out.new)
        write_states(self._states, arrays["rows"], slots, out.states)

    def _features(self, waves: Sequence[_Wave], shape: BatchShape) -> Tensor:  # [B, T, hidden]
        """Return the feature of each node; 0 for nodes without a feature."""
        features = self._states.new_zeros((shape.rows, shape.nodes, self._states.shape[-1]))
        for row, (segment, parents, conditioned) in enumerate(waves):
            drafted = ~conditioned & (parents != FREE)
            above = self._tensor(parents[drafted]).long()
            features[row, self._indices(drafted)] = self._states[segment.row, above]
            if segment.beside is not None and conditioned.any():
                raw = segment.beside.at(segment.positions[conditioned] - 1)
                features[row, self._indices(conditioned)] = self._head.fc(raw.to(features))
        return features

    def _indices(self, marked: NDArray[np.bool_]) -> Tensor:
        return self._tensor(marked.nonzero()[0])

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def read_embeddings(directory: Path, manifest: Manifest) -> Tensor:  # [vocabulary, hidden]
    """Return a compiled target's embeddings, in the precision of its states.

    Each rank's file has a part of the width, for the tokenizer's ids. The rows of other ids are
    zero. Raises BadArtifact.
    """
    size = parse_config(manifest.config).vocab_size
    of_ranks = (directory / "weights").glob("*[0-9]*.safetensors")
    files = sorted(of_ranks, key=_rank_of) or [directory / WEIGHTS]
    table = torch.cat([_read_embeddings(file) for file in files], 1)[:size]
    return torch.nn.functional.pad(table, (0, 0, 0, size - len(table)))


def _rank_of(path: Path) -> int:
    """Return the rank of a weight file: the first number in its name."""
    return int(re.findall(r"\d+", path.name)[0])


def _read_embeddings(path: Path) -> Tensor:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118, it is no mapping
            if name.removeprefix("decoder.") == "model.embed_tokens.weight":
                tensor: Tensor = file.get_tensor(name)
                return tensor
    raise BadArtifact(f"{path} has no embeddings: build the artefact again")
