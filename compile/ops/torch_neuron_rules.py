"""Graphs of native PyTorch (trn2, trn3) as one rank's operations on the meta device, and the rules
that hold for them beside those of every Neuron graph.

The compiler behind both ways is the same, so its rules stay. What differs is what stands before it:
TorchNeuron and torch-mlir lower torch's operations, where the PyTorch/XLA packages replaced some of
them by calls of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compile.ops.recording import WRITES, Op
from compile.ops.rules import RULES, Graph, Rule
from compile.parallel import cast_weights, parallel_config
from compile.spec import CompileSpec
from inference.artifact import NATIVE
from inference.backends.torch_neuron import draws, own_config
from inference.model.cache import empty_cache
from inference.model.config import ModelConfig
from inference.model.decoder import Decoder
from inference.model.noise_window import empty_window
from inference.model.torch_neuron_graph import ALONE, Collectives, InPlaceGraph, rank_layers


def _named() -> Any:
    """The collectives as operations of torch, on the meta device."""
    library: Any = torch.library.Library("outrider_ranks", "DEF")  # type: ignore[no-untyped-call]
    library.define("all_reduce(Tensor x) -> Tensor")
    library.define("all_gather(Tensor x, int ranks) -> Tensor")
    library.impl("all_reduce", torch.empty_like, "Meta")
    library.impl("all_gather", _gathered, "Meta")
    return library


def _gathered(x: Tensor, ranks: int) -> Tensor:
    return x.new_empty((x.shape[0] * ranks, *x.shape[1:]))


_LIBRARY = _named()  # its operations are there while it is held


def native_graph(config: ModelConfig, spec: CompileSpec) -> InPlaceGraph:
    """One rank's graph on the meta device."""
    ranks, dtype = spec.tensor_parallel, getattr(torch, spec.dtype)
    dealt = parallel_config(config, ranks, spec.vocabulary)
    among = ALONE if ranks == 1 else _named_collectives(ranks)
    with torch.device("meta"):
        decoder = Decoder(dealt, spec.sequence_length, spec.vocabulary, rank_layers(among))
    cast_weights(decoder, spec.dtype)
    cache = empty_cache(own_config(dealt, ranks), spec.rows, spec.capacity, dtype, "meta")
    window = None
    if draws(spec.buckets):
        window = empty_window(spec.rows, dealt.vocab_size // ranks, "meta")
    graph = InPlaceGraph(decoder.to("meta"), cache, window, spec.features)
    return graph.requires_grad_(False).eval()


def _named_collectives(ranks: int) -> Collectives:
    named = torch.ops.outrider_ranks
    return Collectives(ranks, named.all_reduce, lambda x: named.all_gather(x, ranks))


def _argmax(op: Op, graph: Graph) -> str | None:
    return "values are reduced together with their places" if op.name == "argmax" else None


def _single_numbers(op: Op, graph: Graph) -> str | None:
    return "becomes a scatter of single numbers" if op.name == "index_copy" else None


def _out_of_place(op: Op, graph: Graph) -> str | None:
    """A cache that is reassigned is another tensor for TorchNeuron, and the old one stays."""
    if op.name not in WRITES or op.inputs[0].kind != "state":
        return None
    kept = op.outputs[0].storage == op.inputs[0].storage
    return None if kept else "writes a copy of the whole cache"


_NATIVE_RULES = (
    Rule(
        "argmax",
        "torch-mlir, DecomposeComplexOps.cpp: argmax is max with places; aws-neuron-sdk, release "
        "notes of JAX NeuronX, known issues: variadic reductions are not supported",
        _argmax,
    ),
    Rule(
        "single_numbers",
        "torch-neuronx, docs/decompositions.md: index_copy is a scatter with an index for each "
        "number",
        _single_numbers,
    ),
    Rule(
        "in_place",
        "torch-neuronx, neuron_dynamo_backend: inputs that a graph writes are kept in place",
        _out_of_place,
    ),
)


def rules_of(target: str) -> tuple[Rule, ...]:
    """The rules for the graphs of a Neuron target."""
    return (*RULES, *_NATIVE_RULES) if target in NATIVE else RULES
