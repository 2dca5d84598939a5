"""Divides a target among the ranks of a tensor-parallel group: its shapes, layers and weights.

Query heads go to ranks in order. Each rank needs the key-value head of its own queries, so
key-value heads are repeated where there are fewer of them than ranks. The head is divided by ids.
It ends at the tokenizer's last id, padded to a multiple of the ranks, so that target and draft
have the same ids on a rank. All ranks run one program, which does not know its rank: a weight
numbers the rank's ids, and embeddings are divided along their width. Norms are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inference.backends.neuron_sdk import Sdk
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig
from inference.model.decoder import Decoder, Layers, attend_in_turn
from inference.model.float8 import stored_type
from inference.model.vocabulary import VocabularyShare

IDS = "ids.weight"
"""Name of the decoder's weight that numbers the ids of a rank's share."""


def parallel_config(config: ModelConfig, ranks: int, vocabulary: int) -> ModelConfig:
    """The config of the divided model. Key-value heads are repeated to one a rank at least. It has
    a head of its own, for the tokenizer's ids, which is padded. Raises InvalidRequest where
    something cannot be divided evenly.
    """
    for what, size in (
        ("attention heads", config.heads),
        ("MLP columns", config.intermediate_size),
        ("hidden columns", config.hidden_size),
    ):
        if size % ranks:
            raise InvalidRequest(
                f"--tensor_parallel {ranks}: {size} {what} cannot be dealt out evenly"
            )
    if config.kv_heads % ranks and ranks % config.kv_heads:
        raise InvalidRequest(
            f"--tensor_parallel {ranks}: {config.kv_heads} key-value heads cannot be dealt out or "
            "repeated evenly"
        )
    return replace(
        config,
        kv_heads=max(config.kv_heads, ranks),
        vocab_size=-(-vocabulary // ranks) * ranks,
        tied=False,
    )


def parallel_layers(sdk: Sdk, dtype: torch.dtype, ranks: int) -> Layers:
    """The SDK's layers for Decoder, to be used within its parallel state."""

    class ParallelHead(sdk.column):  # type: ignore[misc, name-defined]
        """This rank's logits. Those of padding are left to the decoder."""

        def forward(self, states: Tensor, vocabulary: int) -> Tensor:
            logits: Tensor = super().forward(states)
            return logits

    def column(inputs: int, outputs: int, bias: bool) -> Any:
        return sdk.column(
            inputs, outputs, bias=bias, gather_output=False, dtype=dtype, init_method=leave
        )

    def row(inputs: int, outputs: int, bias: bool) -> Any:
        return sdk.row(
            inputs,
            outputs,
            bias=bias,
            input_is_parallel=True,
            dtype=dtype,
            reduce_dtype=summed,
            init_method=leave,
        )

    def embedding(ids: int, size: int) -> Any:
        return sdk.embedding(ids, size, init_method=leave, dtype=dtype, shard_across_embedding=True)

    def head(inputs: int, outputs: int, bias: bool) -> Any:
        return ParallelHead(
            inputs, outputs, bias=bias, gather_output=False, dtype=dtype, init_method=leave
        )

    def ids(outputs: int) -> Any:
        return sdk.column(
            1, outputs, bias=False, gather_output=False, dtype=torch.float32, init_method=leave
        )

    summed = summing_type(dtype, ranks)
    group = sdk.group()  # of the state in force, as the layers keep theirs
    share = VocabularyShare(ranks, lambda part: sdk.gather(part, 0, group))
    return Layers(column, row, embedding, head, attend_in_turn, share, ids)


def summing_type(dtype: torch.dtype, ranks: int) -> torch.dtype:
    """The type in which the ranks' parts of a result are added, of numbers of this type. The sum of
    two in float32, rounded, is what adding them in their own type gives.
    """
    return dtype if ranks <= 2 else torch.float32


def cast_weights(decoder: Decoder, dtype: str) -> None:
    """Give a rank's weights, not filled in yet, the types of an artefact of this dtype; the numbers
    of its ids stay exact.
    """
    for name, parameter in decoder.named_parameters():
        if name != IDS:
            parameter.data = parameter.data.to(stored_type(name, dtype))


def parallel_tensors(
    whole: Iterable[tuple[str, Tensor]], config: ModelConfig, ranks: int, vocabulary: int
) -> dict[str, Tensor]:
    """A whole decoder's parameters in the shapes of parallel_config, not yet divided."""
    dealt = parallel_config(config, ranks, vocabulary)
    tensors = dict(whole)
    if config.tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = _padded(tensors[name][:vocabulary], dealt.vocab_size)
    tensors[IDS] = torch.arange(dealt.vocab_size, dtype=torch.float32)[:, None]
    for name in [name for name in tensors if ".k_proj." in name or ".v_proj." in name]:
        tensors[name] = _repeated(tensors[name], config.kv_heads, dealt.kv_heads // config.kv_heads)
    return tensors


def _padded(table: Tensor, rows: int) -> Tensor:
    """The table with rows of zeros at the end, for ids that no tokenizer has."""
    if len(table) == rows:
        return table
    return torch.cat((table, table.new_zeros(rows - len(table), *table.shape[1:])))


def _repeated(
    tensor: Tensor, heads: int, times: int
) -> Tensor:  # [heads * head dim, ...] -> [heads * times * head dim, ...]
    """Each head repeated `times` in a row, so that copies lie with the ranks whose queries use
    them.
    """
    rest = tensor.shape[1:]
    return tensor.view(heads, -1, *rest).repeat_interleave(times, 0).reshape(-1, *rest)


def leave(weight: Tensor) -> Tensor:
    """Initialisation that does nothing: the weights come from the checkpoint."""
    return weight
