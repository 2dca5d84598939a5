"""Loads a Decoder with weights from a Hugging Face directory.

Only safetensors are read. Every tensor must be used and every parameter filled, otherwise the
checkpoint is rejected. Tensors are checked against the config before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from inference.errors import InvalidRequest, UnsupportedModel
from inference.model.checkpoints.config import ModelConfig, check_shape, check_sizes, read_config
from inference.model.checkpoints.weight_files import (
    HEAD,
    IGNORED,
    check_float,
    stored_tensors,
    stored_type,
    weight_files,
)
from inference.model.decoder import Decoder
from inference.model.layers import WHOLE, Layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Loading(NamedTuple):
    """Progress of reading the weights of a checkpoint."""

    file: int  # that is read now, counted from 1
    files: int
    read: int  # bytes
    size: int  # bytes of all files


def load_decoder(
    directory: Path,
    *,
    positions: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
    layers: Layers = WHOLE,
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Decoder:
    """Load a Decoder with the directory's weights.

    positions: how many positions the rotary table covers
    vocabulary: ids of the tokenizer
    dtype: of all weights; None for stored_type()
    tell: called with the progress before each tensor

    Raises UnsupportedModel or InvalidRequest for a checkpoint that does not fit.
    """
    decoder = empty_decoder(directory, positions, vocabulary, layers)
    dtype = dtype or DTYPES[stored_type(directory)]
    for name, tensor in read_tensors(directory, partial(is_used, decoder.config), tell):
        assign(decoder, name, tensor.to(device=device, dtype=dtype))
    return decoder.to(device).eval()


def empty_decoder(
    directory: Path, positions: int, vocabulary: int, layers: Layers = WHOLE
) -> Decoder:
    """Return a Decoder without weights, on the meta device, after checking that the directory has
    each of its tensors.

    Raises UnsupportedModel or InvalidRequest for a checkpoint that does not fit.
    """
    config = fitting_config(directory, positions, vocabulary)
    tensors = stored_tensors(directory)
    check_sizes({name: tensor.shape for name, tensor in tensors.items()}, config, directory)
    with torch.device("meta"):
        decoder = Decoder(config, positions, vocabulary, layers)
    missing = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    for name, tensor in tensors.items():
        if not is_used(config, name):
            continue
        if name not in missing:
            raise UnsupportedModel(
                f"{directory}: tensor {name} is not part of a {config.model_type} model as "
                "computed here"
            )
        check_shape(directory, name, tensor.shape, missing.pop(name))
        check_float(directory, name, tensor)
    if missing:
        raise UnsupportedModel(
            f"{directory}: tensor {next(iter(missing))} is missing ({len(missing)} in all)"
        )
    return decoder


def fitting_config(directory: Path, positions: int, vocabulary: int) -> ModelConfig:
    """Read the config of a model that needs this many positions and ids.

    Raises UnsupportedModel or InvalidRequest if it has fewer.
    """
    config = read_config(directory)
    check_vocabulary(directory, vocabulary, config.vocab_size)
    if positions > config.max_positions:
        raise InvalidRequest(
            f"sequence length {positions} is over the model's limit of {config.max_positions} "
            f"({config.limited_by})"
        )
    return config


def check_vocabulary(directory: Path, ids: int, vocab_size: int) -> None:
    """Raise UnsupportedModel for a tokenizer with more ids than its model has."""
    if ids > vocab_size:
        raise UnsupportedModel(
            f"{directory}: the tokenizer has {ids} ids, the model's vocab_size is {vocab_size}"
        )


def is_used(config: ModelConfig, name: str) -> bool:
    """Whether a Decoder needs a checkpoint's tensor of this name, or must reject it."""
    return not (name.endswith(IGNORED) or (config.tied and name == HEAD))


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Set the parameter of this name, such as model.norm.weight, to a tensor."""
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))


def read_tensors(
    directory: Path,
    wanted: Callable[[str], bool],
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors with wanted names, one after the other, in the files' order.

    tell: called with the progress before each tensor
    """
    paths, read = weight_files(directory), 0
    size = sum(path.stat().st_size for path in paths)
    for at, path in enumerate(paths, 1):
        with opened(path) as file:
            for name in filter(wanted, file.keys()):
                tell(Loading(at, len(paths), read, size))
                tensor = file.get_tensor(name)
                yield name, tensor
                read += tensor.nbytes


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, which has the library's own type. Raises UnsupportedModel."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UnsupportedModel(f"{path} cannot be read, download it again: {error}") from error
