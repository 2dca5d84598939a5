"""One rank's graph of a spec on the meta device, as the Neuron builder lays it out, and the
operations of a call of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from compile.build.float8_layers import layers_of
from compile.graphs import calls_between
from compile.ops.recording import Recording, record
from compile.ops.torch_neuron_rules import native_graph
from compile.parallel import cast_weights, parallel_config
from compile.spec import CompileSpec
from inference.artifact import NATIVE, Bucket, DraftBucket, RoundBucket
from inference.backends.neuron_sdk import Sdk
from inference.model.cache import KeysValues, empty_cache
from inference.model.config import ModelConfig, parse_config
from inference.model.decoder import Decoder
from inference.model.float8 import states_of
from inference.model.noise_window import empty_window
from inference.model.round_graph import StatefulRoundGraph, draft_inputs, round_inputs
from inference.model.verify_graph import StatefulGraph, example_inputs


def _all_reduce(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _all_gather(x: Tensor, ranks: int, axis: int = -1) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= ranks
    return x.new_empty(shape)


def _named() -> Any:
    """The collectives as operations of torch, on the meta device."""
    library: Any = torch.library.Library("outrider", "DEF")  # type: ignore[no-untyped-call]
    library.define("all_reduce(Tensor x) -> Tensor")
    library.define("all_gather(Tensor x, int ranks, int axis=-1) -> Tensor")
    library.impl("all_reduce", _all_reduce, "Meta")
    library.impl("all_gather", _all_gather, "Meta")
    return library


_LIBRARY = _named()  # its operations are there while it is held


def record_bucket(
    config: ModelConfig, spec: CompileSpec, bucket: Bucket, draft: ModelConfig | None = None
) -> Recording:
    """The operations of a call of one of the spec's graphs on one rank.

    draft: the model that drafts in the graph (default: that of the spec, where it has one)
    """
    if isinstance(bucket, RoundBucket):
        inputs = round_inputs(bucket)
    elif isinstance(bucket, DraftBucket):
        inputs = draft_inputs(bucket)
    else:
        inputs = example_inputs(bucket)
    return _recorded(config, spec, inputs, draft)


def record_between(
    config: ModelConfig, spec: CompileSpec, name: str, draft: ModelConfig | None = None
) -> Recording:
    """The operations of one of calls_between() on one rank."""
    return _recorded(config, spec, calls_between(spec)[name], draft)


def _recorded(
    config: ModelConfig,
    spec: CompileSpec,
    inputs: Mapping[str, Tensor],
    draft: ModelConfig | None,
) -> Recording:
    if draft is None and spec.fused is not None:
        draft = parse_config(spec.fused.config)
    with torch.device("meta"):
        graph = _graph(config, spec, draft)
    laid = {name: tensor.to("meta") for name, tensor in inputs.items()}
    return record(graph.requires_grad_(False).eval(), laid)


def _graph(config: ModelConfig, spec: CompileSpec, draft: ModelConfig | None) -> nn.Module:
    if spec.target in NATIVE:
        return native_graph(config, spec)
    decoder, cache = _decoder(config, spec), _cache(config, spec)
    window = None
    if any(bucket.sampled for bucket in spec.graphs):
        window = empty_window(spec.rows, decoder.config.vocab_size // spec.tensor_parallel, "meta")
    if spec.fused is None or draft is None:
        return StatefulGraph(decoder, cache, window, spec.features)
    caches = (cache, _cache(draft, spec))
    return StatefulRoundGraph(decoder, _decoder(draft, spec), *caches, spec.fused.shape, window)


def _decoder(config: ModelConfig, spec: CompileSpec) -> Decoder:
    decoder = Decoder(
        parallel_config(config, spec.tensor_parallel, spec.vocabulary),
        spec.sequence_length,
        spec.vocabulary,
        layers_of(_meta_sdk(spec.tensor_parallel), spec),
    )
    cast_weights(decoder, spec.dtype)
    return decoder.to("meta")


def _cache(config: ModelConfig, spec: CompileSpec) -> KeysValues:
    dealt = parallel_config(config, spec.tensor_parallel, spec.vocabulary)
    own = replace(dealt, kv_heads=dealt.kv_heads // spec.tensor_parallel)
    return empty_cache(own, spec.rows, spec.capacity, states_of(spec.dtype), "meta")


def _meta_sdk(ranks: int) -> Sdk:
    """One rank's share of each parallel layer, with collectives in the places where NxD has them:
    sums in the type that is asked for, and gathers along one axis.
    """

    def gathered(x: Tensor, axis: int = -1, _: object = None) -> Tensor:
        return torch.ops.outrider.all_gather(x, ranks, axis) if ranks > 1 else x

    def added(x: Tensor, _: object = None) -> Tensor:
        return torch.ops.outrider.all_reduce(x) if ranks > 1 else x

    class Column(nn.Linear):
        def __init__(
            self, inputs: int, outputs: int, *, bias: bool, gather_output: bool, **_: Any
        ) -> None:
            super().__init__(inputs, outputs // ranks, bias)
            self._gather = gather_output

        def forward(self, x: Tensor) -> Tensor:
            return gathered(super().forward(x)) if self._gather else super().forward(x)

    class Row(nn.Linear):
        def __init__(
            self, inputs: int, outputs: int, *, bias: bool, reduce_dtype: torch.dtype, **_: Any
        ) -> None:
            super().__init__(inputs // ranks, outputs, bias)
            self._summed = reduce_dtype

        def forward(self, x: Tensor) -> Tensor:
            part = nn.functional.linear(x, self.weight)
            if ranks > 1:
                part = added(part.to(self._summed)).to(x.dtype)
            return part if self.bias is None else part + self.bias

    class Embedding(nn.Embedding):
        def __init__(self, ids: int, size: int, **_: Any) -> None:
            super().__init__(ids, size // ranks)

        def forward(self, ids: Tensor) -> Tensor:
            return gathered(super().forward(ids))

    return Sdk(None, None, None, None, Column, Row, Embedding, gathered, added, lambda: None)
