"""Loads a Decoder with weights from the safetensors files of a Hugging Face directory. Names and
shapes of tensors are checked before memory is allocated.
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

    file: int  # number of the current file, counted from 1
    files: int
    bytes_read: int
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
    """Load a Decoder with the weights of a directory.

    positions: number of positions in the rotary table
    vocabulary: number of token ids of the tokenizer
    dtype: precision of all weights; None for stored_type()
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
    all of its tensors. Raises UnsupportedModel or InvalidRequest if the checkpoint does not fit.
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
    """Read a model's config. Raises UnsupportedModel or InvalidRequest if the model supports fewer
    positions or token ids.
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
    """Raise UnsupportedModel if the tokenizer has more ids than the model."""
    if ids > vocab_size:
        raise UnsupportedModel(
            f"{directory}: the tokenizer has {ids} ids, the model's vocab_size is {vocab_size}"
        )


def is_used(config: ModelConfig, name: str) -> bool:
    """Return whether a checkpoint's tensor is loaded (or rejected), rather than ignored."""
    return not (name.endswith(IGNORED) or (config.tied and name == HEAD))


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Set the parameter with this name, such as model.norm.weight, to a tensor."""
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))


def read_tensors(
    directory: Path,
    select: Callable[[str], bool],
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors whose names `select` accepts, in the order of the files.

    tell: called with the progress before each tensor
    """
    paths, bytes_read = weight_files(directory), 0
    size = sum(path.stat().st_size for path in paths)
    for at, path in enumerate(paths, 1):
        with opened(path) as file:
            for name in filter(select, file.keys()):
                tell(Loading(at, len(paths), bytes_read, size))
                tensor = file.get_tensor(name)
                yield name, tensor
                bytes_read += tensor.nbytes


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. Raises UnsupportedModel if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UnsupportedModel(f"{path} cannot be read, download it again: {error}") from error
