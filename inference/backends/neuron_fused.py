"""A fused target on NeuronCores: graphs of target, draft and rounds in one package, over one state.

A text has one row of the target and one of the draft; each round is told which belong together. Not
yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.artifact import Bucket, DraftBucket, Manifest, RoundBucket
from inference.backends import Segment
from inference.backends.compiled import CompiledModel, empty_caches
from inference.backends.fused import draft_of, fill_round, fused_part, in_rounds
from inference.backends.neuron import NeuronModel, Program, Say, fill, picked
from inference.model.checkpoint import DTYPES
from inference.model.config import parse_config
from inference.model.round_graph import draft_inputs, round_inputs, under_draft_names
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

    def call(self, graph: str, inputs: dict[str, Tensor]) -> Tensor:
        """Call any graph of the package while no other call is in flight."""
        return self._run(graph, inputs)

    def _round(self, bucket: RoundBucket, segments: Sequence[Segment]) -> list[IntArray]:
        places = [(segment.row, draft_of(segment).row) for segment in segments]
        inputs = fill_round(bucket, segments, places)
        for row, draft_row in places:
            inputs["draft_rows"][row], inputs["rows"][draft_row] = draft_row, row
        answers = self._run(bucket.name, inputs).numpy()
        return [answers[segment.row].astype(np.int32) for segment in segments]

    def _idle_calls(self) -> dict[str, dict[str, Tensor]]:
        alone = {bucket.name: draft_inputs(bucket) for bucket in self.draft.buckets}
        return (
            super()._idle_calls()
            | alone
            | {bucket.name: round_inputs(bucket) for bucket in self._round_buckets}
        )


class _NeuronDraft(CompiledModel):
    """The draft as a Model of its own, with its graphs in the target's package."""

    def __init__(self, beside: NeuronFusedModel, manifest: Manifest) -> None:
        part = fused_part(manifest)
        self.buckets: tuple[DraftBucket, ...] = part.prefill
        with torch.device("meta"):  # their shape is all that this side has of them
            caches = empty_caches(
                parse_config(part.config), manifest.rows, manifest.capacity, DTYPES[manifest.dtype]
            )
        graphs: dict[Bucket, Any] = {
            bucket: partial(beside.call, bucket.name) for bucket in self.buckets
        }
        super().__init__(graphs, *caches)
        self._beside = beside

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[IntArray]:
        chosen = self._beside.call(bucket.name, under_draft_names(fill(bucket, segments)))
        return picked(bucket, chosen, segments)
