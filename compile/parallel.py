"""Divides a target among the ranks of a tensor-parallel group: its shapes, layers and weights, and
the module of one rank, from which all graphs are traced.

Query heads are assigned to ranks in order. Each rank needs the key-value heads of its own queries,
so key-value heads are repeated if there are fewer than ranks. The head is divided by ids. It ends
at the tokenizer's last id, padded to a multiple of 32 ids per rank, so that target and draft have
the same ids on a rank, and a rank's share of a mask consists of whole words. All ranks run the same
program, which does not know its rank: a weight contains the rank's ids, and embeddings are divided
along their width. Norms are whole on every rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compile.spec import CompileSpec, mask_words
from inference.backends.neuron.model import needs_noise
from inference.backends.neuron.sdk import Sdk
from inference.files.writing import write_whole
from inference.model.cache import empty_cache
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.config import ModelConfig
from inference.model.choice.graph_choice import empty_window
from inference.model.choice.vocabulary import VocabularyShare
from inference.model.decoder import Decoder
from inference.model.graphs.round_graph import StatefulRoundGraph
from inference.model.graphs.verify_graph import StatefulGraph
from inference.model.layers import Layers, Sight, attend

IDS = "ids.weight"
"""Name of the decoder's weight with the ids of a rank's share."""


def parallel_config(config: ModelConfig, ranks: int, vocabulary: int) -> ModelConfig:
    """Return the config of the divided model: with at least one key-value head per rank, by
    repetition, and an untied, padded head for the tokenizer's ids.
    """
    assert shards_evenly(config, ranks), "compile/plan/fit.py checks it before a build"
    return replace(
        config,
        kv_heads=max(config.kv_heads, ranks),
        vocab_size=32 * mask_words(vocabulary, ranks),
        tied=False,
    )


def shards_evenly(config: ModelConfig, ranks: int) -> bool:
    """Return whether all ranks get equal shares; key-value heads may be repeated."""
    sizes = config.heads, config.intermediate_size, config.hidden_size
    kv_heads = config.kv_heads
    return not any(size % ranks for size in sizes) and not (kv_heads % ranks and ranks % kv_heads)


def layers_of(sdk: Sdk, spec: CompileSpec) -> Layers:
    """Return the layers of one of the spec's ranks, for use within the SDK's parallel state."""
    dtype, ranks = DTYPES[spec.dtype], spec.tensor_parallel
    columns: dict[str, Any] = {"gather_output": False, "init_method": leave}
    rows: dict[str, Any] = {"input_is_parallel": True, "dtype": dtype, "init_method": leave}
    rows["reduce_dtype"] = summing_type(dtype, ranks)

    class Head(sdk.column):  # type: ignore[misc, name-defined]
        """A head for this rank's logits. The decoder handles the logits of padding ids."""

        def forward(self, states: Tensor, vocabulary: int) -> Tensor:
            logits: Tensor = super().forward(states)
            return logits

    def ids(outputs: int) -> Any:
        return sdk.column(1, outputs, bias=False, dtype=torch.float32, **columns)

    group = sdk.group()  # of the current state, as used by the layers
    return Layers(
        partial(sdk.column, dtype=dtype, **columns),
        partial(sdk.row, **rows),
        partial(sdk.embedding, dtype=dtype, init_method=leave, shard_across_embedding=True),
        partial(Head, dtype=dtype, **columns),
        attend_in_turn,
        VocabularyShare(ranks, lambda share: sdk.gather(share, 0, group)),
        ids,
    )


def attend_in_turn(
    q: Tensor, past_keys: Tensor, past_values: Tensor, k: Tensor, v: Tensor, sight: Sight
) -> Tensor:
    """Compute attend() row by row: with a single row, products use keys and values in place; with
    several rows, they would need copies.
    """
    rows = [
        attend(q[at], past_keys[at], past_values[at], k[at], v[at], Sight(*(t[at] for t in sight)))
        for at in (slice(row, row + 1) for row in range(len(sight.cos)))
    ]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def write_record(directory: Path, graph: str, inputs: Mapping[str, Tensor], **settings: str) -> str:
    """Write a graph's record: the type and sizes of each input, and these settings. Returns the
    file's path in the artefact.
    """
    name, described = f"graphs/{graph}.json", dict[str, list[Any]]()
    for key, tensor in inputs.items():
        described[key] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    record = {"inputs": described, **settings}
    write_whole(directory / name, json.dumps(record, indent=1) + "\n")
    return name


def rank_module(
    spec: CompileSpec, config: ModelConfig, draft: ModelConfig | None, layers: Layers, device: str
) -> nn.Module:
    """Return the module from which PyTorch/XLA traces all graphs of a rank, with uninitialised
    weights.

    config, draft: of the whole models
    """
    ranks, dtype, models = spec.tensor_parallel, DTYPES[spec.dtype], list[Any]()
    for model in filter(None, (config, draft)):
        sharded = parallel_config(model, ranks, spec.vocabulary)
        decoder = Decoder(sharded, spec.sequence_length, spec.vocabulary, layers)
        cast_weights(decoder, spec.dtype)
        for name in ("cos", "sin"):  # constants stored with the weights; state changes
            decoder.register_buffer(name, decoder.get_buffer(name), persistent=True)
        rank_config = replace(sharded, kv_heads=sharded.kv_heads // ranks)
        models.append((decoder, empty_cache(rank_config, spec.rows, spec.capacity, dtype, device)))
    (decoder, cache), *beside = models
    window = None
    if needs_noise(spec):
        window = empty_window(spec.rows, decoder.config.vocab_size // ranks, device)
    if spec.fused is None or not beside:
        module: nn.Module = StatefulGraph(decoder, cache, window, spec.features)
    else:
        ((drafts, draft_cache),) = beside
        shape = spec.fused.shape
        module = StatefulRoundGraph(decoder, drafts, cache, draft_cache, shape, window)
    return module.requires_grad_(False).eval()


def summing_type(dtype: torch.dtype, ranks: int) -> torch.dtype:
    """Return the type in which to add the ranks' partial results. For two ranks, adding in their
    own type equals adding in float32 and rounding.
    """
    return dtype if ranks <= 2 else torch.float32


def cast_weights(decoder: Decoder, dtype: str) -> None:
    """Convert a rank's uninitialised weights to this type, except the exact table of its ids."""
    for name, parameter in decoder.named_parameters():
        if name != IDS:
            parameter.data = parameter.data.to(DTYPES[dtype])


def parallel_tensors(
    parameters: Iterable[tuple[str, Tensor]], config: ModelConfig, ranks: int, vocabulary: int
) -> dict[str, Tensor]:
    """Return a whole decoder's parameters in the shapes of parallel_config, not yet divided."""
    sharded = parallel_config(config, ranks, vocabulary)
    tensors = dict(parameters)
    if config.tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = _padded(tensors[name][:vocabulary], sharded.vocab_size)
    tensors[IDS] = torch.arange(sharded.vocab_size, dtype=torch.float32)[:, None]
    times = sharded.kv_heads // config.kv_heads
    for name in [name for name in tensors if ".k_proj." in name or ".v_proj." in name]:
        tensors[name] = _repeated(tensors[name], config.kv_heads, times)
    return tensors


def _padded(table: Tensor, rows: int) -> Tensor:
    """Return the table with rows of zeros appended, for ids that no tokenizer has."""
    if len(table) == rows:
        return table
    return torch.cat((table, table.new_zeros(rows - len(table), *table.shape[1:])))


def _repeated(
    tensor: Tensor, heads: int, times: int
) -> Tensor:  # [heads * head dim, ...] -> [heads * times * head dim, ...]
    """Repeat each head `times` in a row, so that copies are on the same rank as the queries that
    use them.
    """
    rest = tensor.shape[1:]
    return tensor.view(heads, -1, *rest).repeat_interleave(times, 0).reshape(-1, *rest)


def leave(weight: Tensor) -> Tensor:
    """Do nothing: an initialisation for weights that come from the checkpoint."""
    return weight
