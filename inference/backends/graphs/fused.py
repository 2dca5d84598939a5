"""A compiled target with a draft. A round is a single graph that drafts, verifies and accepts; the
target's own graphs still compute prompts, and trees from other drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference.backends import Segment
from inference.backends.batch import check_rows
from inference.backends.graphs.compiled import (
    WEIGHTS,
    CompiledModel,
    Graph,
    cache_in,
    load_constants,
    load_graphs,
)
from inference.backends.graphs.graph_calls import check_sampled, cost, unstacked
from inference.errors import BadArtifact, LimitExceeded
from inference.files.artifact import Bucket, FusedPart, Manifest, RoundBucket
from inference.model.cache import KeysValues, write_slots
from inference.model.checkpoints.config import parse_config
from inference.model.choice.sampler import Sampling
from inference.model.graphs.round_graph import DRAFT, round_inputs
from inference.tree.token_tree import IntArray

DRAFT_WEIGHTS = "weights/draft.safetensors"


class FusedModel(CompiledModel):
    """The graphs of a target, of its draft, and of rounds.

    round_graphs: graphs of rounds by bucket
    """

    def __init__(
        self,
        graphs: Mapping[Bucket, Graph],
        cache: KeysValues,
        draft: CompiledModel,
        rounds: Mapping[RoundBucket, Graph],
    ) -> None:
        super().__init__(graphs, cache)
        self.draft, self.round_graphs = draft, dict(rounds)
        self.shape = next(iter(rounds)).shape

    @torch.no_grad()
    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """Run a round for each segment; see RoundModel.rounds()."""
        return in_rounds(list(self.round_graphs), segments, self._round)

    def _round(self, bucket: RoundBucket, segments: Sequence[Segment]) -> list[IntArray]:
        inputs = fill_round(bucket, segments)
        answers, *new = self.round_graphs[bucket](**inputs)
        write_slots(self.cache, inputs["rows"], inputs["slots"], unstacked(*new[:2]))
        write_slots(
            self.draft.cache, inputs["draft_rows"], inputs["draft_slots"], unstacked(*new[2:])
        )
        return list(answers[: len(segments)].numpy().astype(np.int32))


def in_rounds(
    buckets: Sequence[RoundBucket],
    segments: Sequence[Segment],
    call: Callable[[RoundBucket, Sequence[Segment]], list[IntArray]],
) -> list[IntArray]:
    """Compute all segments by the cheapest graph that fits; if none fits, split them in halves."""
    check_rows(segments)
    check_rows([draft_of(segment) for segment in segments])
    bucket = _round_bucket(sorted(buckets, key=cost), segments)
    if bucket is not None:
        return call(bucket, segments)
    half = len(segments) // 2
    return in_rounds(buckets, segments[:half], call) + in_rounds(buckets, segments[half:], call)


def _round_bucket(
    buckets: Sequence[RoundBucket], segments: Sequence[Segment]
) -> RoundBucket | None:
    """Return the first bucket that fits all segments in one call; None if they must be split."""
    slots = max(
        max(segment.context.shape[1], draft_of(segment).context.shape[1]) for segment in segments
    )
    greedy = all(segment.params.greedy for segment in segments)
    suitable = [
        bucket for bucket in buckets if bucket.slots >= slots and (bucket.sampled or greedy)
    ]
    if not suitable:
        check_sampled(buckets, segments)
        raise LimitExceeded(
            f"{slots} slots of context: the largest round of this artefact reads "
            f"{max(bucket.slots for bucket in buckets)}"
        )
    return next((bucket for bucket in suitable if bucket.rows >= len(segments)), None)


def fill_round(bucket: RoundBucket, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return the inputs of a round for these segments, padded with idle rows."""
    inputs = round_inputs(bucket)
    entry = 1 + bucket.shape.inner
    for index, segment in enumerate(segments):
        draft = draft_of(segment)
        first = entry - len(draft.tokens)  # 1 if no token is pending
        _lay(inputs, "", index, segment, 0)
        _lay(inputs, DRAFT, index, draft, first)
        inputs["draft_tokens"][index, first:] = torch.tensor(draft.tokens[: 2 - first])
    if bucket.sampled:
        sampling = Sampling.of([segment.params for segment in segments], torch.device("cpu"))
        for name, tensor in sampling._asdict().items():
            inputs[name][: len(segments)] = tensor
    return inputs


def draft_of(segment: Segment) -> Segment:
    """Return the draft's segment of a fused round."""
    assert isinstance(segment.beside, Segment), "a segment of a round has the draft's beside it"
    return segment.beside


def _lay(
    inputs: Mapping[str, Tensor], which: str, index: int, segment: Segment, first: int
) -> None:
    """Write a model's segment into the inputs, with its nodes from index `first` on."""
    last = first + len(segment.tokens)
    width = segment.context.shape[1]
    inputs[f"{which}rows"][index] = segment.row
    inputs[f"{which}slots"][index, first:last] = torch.tensor(segment.slots)
    inputs[f"{which}positions"][index, first:last] = torch.tensor(segment.positions)
    inputs[f"{which}context_mask"][index, :, :width] = torch.tensor(segment.context)
    inputs[f"{which}tree_mask"][index, first:last, first:last] = torch.tensor(segment.tree_mask)


def fused_part(manifest: Manifest) -> FusedPart:
    """Return the draft's part of a manifest. Raises BadArtifact if there is no draft."""
    if manifest.fused is None:
        raise BadArtifact(
            f"the artefact of {manifest.model} has no draft in its graphs: build one with python "
            "-m compile --fused"
        )
    return manifest.fused


def load_fused(directory: Path, manifest: Manifest) -> FusedModel:
    """Load an artefact's graphs with its weights and empty caches, after read_compiled()."""
    fused = fused_part(manifest)
    target = load_constants(directory / WEIGHTS, parse_config(manifest.config), manifest)
    beside = load_constants(directory / DRAFT_WEIGHTS, parse_config(fused.config), manifest)
    graphs = load_graphs(directory, manifest.buckets, target)
    alone: dict[Bucket, Graph] = load_graphs(directory, fused.prefill, beside)
    rounds = load_graphs(directory, fused.rounds, target | round_constants(beside))
    draft = CompiledModel(alone, cache_in(beside))
    return FusedModel(graphs, cache_in(target), draft, rounds)


def round_constants(beside: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a draft's weights and caches by their names in the graphs of rounds."""
    return {
        name.replace("decoder.", "draft.", 1)
        if name.startswith("decoder.")
        else f"{DRAFT}{name}": tensor
        for name, tensor in beside.items()
    }
