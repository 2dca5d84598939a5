"""The graphs of a Neuron target as calls of one module: one rank's share of the model."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from compile.parallel import cast_weights, parallel_config
from compile.spec import CompileSpec
from inference.artifact import NATIVE
from inference.backends.neuron import COPY, FILL
from inference.model.cache import KeysValues, empty_cache
from inference.model.config import ModelConfig
from inference.model.decoder import Decoder, Layers
from inference.model.float8 import states_of
from inference.model.noise_window import Place, empty_window, fill_inputs
from inference.model.round_graph import StatefulRoundGraph
from inference.model.torch_neuron_graph import InPlaceGraph
from inference.model.verify_graph import StatefulGraph, copy_inputs


def calls_between(spec: CompileSpec) -> dict[str, dict[str, Tensor]]:
    """The inputs of an idle call of each small graph that is called between those of the spec, by
    name: one copies a row, where there are several, and one makes noise, where a graph is sampled.
    """
    calls = {COPY: copy_inputs()} if spec.rows > 1 else {}
    if _draws(spec):
        calls[FILL] = fill_inputs([Place(0, 0, 0)])
    return calls


def rank_module(
    spec: CompileSpec, config: ModelConfig, draft: ModelConfig | None, layers: Layers, device: str
) -> nn.Module:
    """The module of which every graph of one rank is a call, its weights not filled in.

    config, draft: of the whole models; layers: of a rank
    """
    decoder, cache = _decoder(spec, config, layers), _cache(spec, config, device)
    window = None
    if _draws(spec):
        ids = decoder.config.vocab_size // spec.tensor_parallel
        window = empty_window(spec.rows, ids, device)
    if spec.target in NATIVE:
        module: nn.Module = InPlaceGraph(decoder, cache, window, spec.features)
    elif spec.fused is None or draft is None:
        module = StatefulGraph(decoder, cache, window, spec.features)
    else:
        caches = cache, _cache(spec, draft, device)
        beside = _decoder(spec, draft, layers)
        module = StatefulRoundGraph(decoder, beside, *caches, spec.fused.shape, window)
    return module.requires_grad_(False).eval()


def _draws(spec: CompileSpec) -> bool:
    """Whether a graph samples, so that there is noise to keep."""
    return any(bucket.sampled for bucket in spec.graphs)


def _decoder(spec: CompileSpec, config: ModelConfig, layers: Layers) -> Decoder:
    dealt = parallel_config(config, spec.tensor_parallel, spec.vocabulary)
    decoder = Decoder(dealt, spec.sequence_length, spec.vocabulary, layers)
    cast_weights(decoder, spec.dtype)
    for name in ("cos", "sin"):  # constants that travel with the weights: state is what changes
        decoder.register_buffer(name, decoder.get_buffer(name), persistent=True)
    return decoder


def _cache(spec: CompileSpec, config: ModelConfig, device: str) -> KeysValues:
    dealt = parallel_config(config, spec.tensor_parallel, spec.vocabulary)
    own = replace(dealt, kv_heads=dealt.kv_heads // spec.tensor_parallel)
    return empty_cache(own, spec.rows, spec.capacity, states_of(spec.dtype), device)
