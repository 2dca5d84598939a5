"""The operations of a call of one rank's graph, laid out on the meta device as the builders do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from compile.ops.recording import Recording, record
from compile.parallel import layers_of, rank_module
from compile.spec import CompileSpec
from inference.artifact import NATIVE
from inference.backends.neuron_sdk import Sdk
from inference.model.config import ModelConfig, parse_config
from inference.model.decoder import Layers
from inference.model.torch_neuron_graph import ALONE, Collectives, rank_layers


def record_call(
    config: ModelConfig,
    spec: CompileSpec,
    inputs: Mapping[str, Tensor],
    draft: ModelConfig | None = None,
) -> Recording:
    """The operations of a call of the spec's graphs on one rank.

    inputs: of the call, which say what graph it is
    draft: the model that drafts in the graph (default: that of the spec, where it has one)
    """
    if draft is None and spec.fused is not None:
        draft = parse_config(spec.fused.config)
    module = meta_module(config, spec, draft)
    return record(module, {name: part.to("meta") for name, part in inputs.items()})


def meta_module(
    config: ModelConfig, spec: CompileSpec, draft: ModelConfig | None = None
) -> nn.Module:
    """One rank's module on the meta device."""
    ranks = spec.tensor_parallel
    with torch.device("meta"):
        native = spec.target in NATIVE
        layers = _native_layers(ranks) if native else layers_of(_meta_sdk(ranks), spec)
        return rank_module(spec, config, draft, layers, "meta").to("meta")


def _native_layers(ranks: int) -> Layers:
    named = torch.ops.outrider
    among = Collectives(ranks, named.all_reduce, lambda x: named.all_gather(x, ranks, 0))
    return rank_layers(ALONE if ranks == 1 else among)


def _all_gather(x: Tensor, ranks: int, axis: int = -1) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= ranks
    return x.new_empty(shape)


def _named() -> Any:
    """The collectives as operations of torch, on the meta device."""
    library: Any = torch.library.Library("outrider", "DEF")  # type: ignore[no-untyped-call]
    library.define("all_reduce(Tensor x) -> Tensor")
    library.define("all_gather(Tensor x, int ranks, int axis=-1) -> Tensor")
    library.impl("all_reduce", torch.empty_like, "Meta")
    library.impl("all_gather", _all_gather, "Meta")
    return library


_LIBRARY = _named()  # its operations are there while it is held


def _meta_sdk(ranks: int) -> Sdk:
    """One rank's share of each parallel layer, with collectives in the places where NxD has them:
    sums in the type that is asked for, and gathers along one axis.
    """

    def gathered(x: Tensor, axis: int = -1, _: object = None) -> Tensor:
        return torch.ops.outrider.all_gather(x, ranks, axis) if ranks > 1 else x

    def added(x: Tensor, _: object = None) -> Tensor:
        return torch.ops.outrider.all_reduce(x) if ranks > 1 else x

    class Column(nn.Linear):
        def __init__(self, inputs: int, outputs: int, bias: bool, **_: Any) -> None:
            super().__init__(inputs, outputs // ranks, bias)

    class Row(nn.Linear):
        def __init__(
            self, inputs: int, outputs: int, bias: bool, reduce_dtype: torch.dtype, **_: Any
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
