"""The Neuron builder for a target with a draft in its graphs. Both models are divided among the
same ranks, with all graphs in one package.

Run through a strict stand-in (tests/support/fake_neuron.py); not yet run on hardware.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from compile.build.neff_cache import NeffCache
from compile.build.neuron_builder import NeuronBuilder
from compile.parallel import parallel_config
from compile.spec import CompileSpec
from inference.artifact import Bucket, DraftBucket, RoundBucket
from inference.errors import InvalidRequest
from inference.model.config import read_config
from inference.model.round_graph import StatefulRoundGraph, draft_inputs, round_inputs


class FusedNeuronBuilder(NeuronBuilder):
    """A Builder (compile/build/build.py) for Neuron targets with a draft. Raises InvalidRequest
    where the draft cannot be divided among the ranks.
    """

    def __init__(
        self,
        spec: CompileSpec,
        checkpoint_directory: Path,
        vocabulary: int,
        draft_directory: Path,
        *,
        cache: NeffCache | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(spec, checkpoint_directory, vocabulary, cache=cache, workers=workers)
        if spec.fused is None:
            raise InvalidRequest("a builder for fused graphs was given a spec without a draft")
        self._shape, self._draft_checkpoint = spec.fused.shape, draft_directory
        self._draft_config = read_config(draft_directory)
        self._draft_dealt = parallel_config(self._draft_config, spec.tensor_parallel, vocabulary)

    def _weights(self) -> dict[str, Tensor]:
        return super()._weights() | self._weights_of(
            self._draft_checkpoint, self._draft_config, "draft"
        )

    def _inputs(self, bucket: Bucket) -> dict[str, Tensor]:
        if isinstance(bucket, RoundBucket):
            return round_inputs(bucket)
        return draft_inputs(bucket) if isinstance(bucket, DraftBucket) else super()._inputs(bucket)

    def _graph(self, device: str) -> StatefulRoundGraph:
        decoder, draft = self._rank_decoder(self._dealt), self._rank_decoder(self._draft_dealt)
        caches = (
            self._rank_cache(self._dealt, device),
            self._rank_cache(self._draft_dealt, device),
        )
        graph = StatefulRoundGraph(decoder, draft, *caches, self._shape, self._rank_window(device))
        return graph.requires_grad_(False).eval()
