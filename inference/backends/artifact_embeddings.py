"""The embeddings of a compiled target, read from its artefact: heads beside it share them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from inference.artifact import NATIVE, Manifest
from inference.backends.compiled import WEIGHTS
from inference.backends.neuron import SHARD
from inference.backends.torch_neuron import rank_weights
from inference.errors import BadArtifact
from inference.model.config import parse_config

_NAME = "model.embed_tokens.weight"


def read_embeddings(directory: Path, manifest: Manifest) -> Tensor:  # [vocabulary, hidden]
    """The embeddings, in the precision of the target's states.

    Ranks hold parts of their width, for the tokenizer's ids. Rows of further ids are zeros.

    Raises BadArtifact.
    """
    size = parse_config(manifest.config).vocab_size
    files, name = _where(manifest)
    table = torch.cat([_tensor(directory / file, name) for file in files], 1)[:size]
    return torch.nn.functional.pad(table, (0, 0, 0, size - len(table)))


def _where(manifest: Manifest) -> tuple[Sequence[str], str]:
    """The files with the parts of the embeddings, in the order of ranks, and their name there."""
    ranks = range(manifest.tensor_parallel)
    if manifest.target == "cpu":
        return [WEIGHTS], _NAME
    if manifest.target in NATIVE:
        return [rank_weights(rank) for rank in ranks], _NAME
    return [SHARD.format(rank) for rank in ranks], f"decoder.{_NAME}"


def _tensor(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        if name not in file.keys():  # noqa: SIM118, it is no mapping
            raise BadArtifact(f"{path} has no tensor {name}: build the artefact again")
        tensor: Tensor = file.get_tensor(name)
        return tensor
