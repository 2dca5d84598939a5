"""A fused target on NeuronCores: graphs of target, draft and rounds in one package, over one state.

Not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from inference.artifact import Bucket, Manifest, RoundBucket
from inference.backends import Segment
from inference.backends.compiled import CompiledModel
from inference.backends.fused import fill_round, fused_part, in_rounds
from inference.backends.graph_calls import inputs_of, picked
from inference.backends.neuron import NeuronModel, Program, Say, shape_of_cache
from inference.backends.noise_ahead import Draw
from inference.model.round_graph import under_draft_names
from inference.tree import IntArray


class NeuronFusedModel(NeuronModel):
    """A RoundModel (inference/backends) whose caches live on the device."""

    def __init__(self, program: Program, manifest: Manifest, say: Say) -> None:
        part = fused_part(manifest)
        self._round_buckets, self.shape = part.rounds, part.shape
        self.draft = _NeuronDraft(self, manifest)
        super().__init__(program, manifest, say)

    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """Make one round for each segment; see RoundModel.rounds()."""
        return in_rounds(self._round_buckets, segments, self._round)

    def call(self, graph: str, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Call any graph of the package while no other call is in flight."""
        return self._run(graph, inputs)

    def _round(self, bucket: RoundBucket, segments: Sequence[Segment]) -> list[IntArray]:
        draws = [
            Draw(
                segment.row,
                segment.params.seed,
                int(segment.positions[0]) + 1,
                int(segment.positions[0]) + 1 + bucket.shape.depth,
            )
            for segment in segments
            if not segment.params.greedy
        ]
        (answers,) = self._drawing(draws, bucket.name, fill_round(bucket, segments))
        return list(answers[: len(segments)].numpy().astype(np.int32))


class _NeuronDraft(CompiledModel):
    """The draft as a Model of its own, with its graphs in the target's package."""

    def __init__(self, beside: NeuronFusedModel, manifest: Manifest) -> None:
        part = fused_part(manifest)
        graphs: dict[Bucket, Any] = {
            bucket: partial(beside.call, bucket.name) for bucket in part.prefill
        }
        super().__init__(graphs, shape_of_cache(manifest, part.config))
        self._beside = beside

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[IntArray]:
        inputs = under_draft_names(inputs_of(bucket, segments))
        (chosen,) = self._beside.call(bucket.name, inputs)
        return picked(bucket, chosen, segments)
