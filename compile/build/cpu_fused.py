"""The CPU builder for a target with a draft in its graphs: the target's packages, the draft's,
and a package for each fused round.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from compile.build.cpu import CpuBuilder, Loaded, save_weights
from compile.build.fused_equivalence import check_round, check_round_independence
from compile.spec import CompileSpec
from inference.artifact import Bucket, DraftBucket, RoundBucket
from inference.backends.compiled import graph_path
from inference.backends.fused import DRAFT_WEIGHTS, round_constants
from inference.model.round_graph import RoundGraph, round_inputs


class FusedCpuBuilder(CpuBuilder):
    """A Builder (compile/build/build.py) for a target and its draft on the CPU of this machine."""

    def __init__(
        self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int, draft_directory: Path
    ) -> None:
        super().__init__(spec, checkpoint_directory, vocabulary)
        self._draft_checkpoint = draft_directory

    def prepare(self, directory: Path) -> list[str]:
        """Write the weights of both models."""
        files = super().prepare(directory)
        save_weights(self.draft.decoder, directory / DRAFT_WEIGHTS)
        return [*files, DRAFT_WEIGHTS]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Build one graph. Raises BadArtifact when it does not compute what the eager graph
        computes.
        """
        if isinstance(bucket, RoundBucket):
            return self._build_round(bucket, directory)
        return self.build_alone(
            self.draft if isinstance(bucket, DraftBucket) else self.model, bucket, directory
        )

    def _build_round(self, bucket: RoundBucket, directory: Path) -> list[str]:
        target, draft, length = self.model, self.draft, self.spec.sequence_length
        eager = RoundGraph(target.decoder, draft.decoder, target.cache, draft.cache, bucket.shape)
        constants = target.constants() | round_constants(draft.constants())
        with self.compiled(eager, bucket, round_inputs(bucket), constants, directory) as graph:
            check_round(eager, graph, bucket, sequence_length=length)
            check_round_independence(
                graph, bucket, self.vocabulary, self.spec.rows, sequence_length=length
            )
        return [graph_path(bucket)]

    @cached_property
    def draft(self) -> Loaded:
        """The draft, one for all rounds."""
        return self.load(self._draft_checkpoint)
