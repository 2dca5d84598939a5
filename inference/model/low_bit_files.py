"""Files of a model's 4-bit copy: a directory that a checkpoint's substitute is loaded from.

    substitute.json             written last: a directory without it is no copy
    layer-00000.safetensors     a file a layer; names are those of the checkpoint, below the layer
    rest.safetensors            embeddings, final norm and head
    config.json, tokenizer ...  as in the checkpoint

A matrix NAME [outputs, inputs] is three tensors. Weight i is (level - 8) * scale + middle, in which
scale and middle are those of its group of inputs.

    NAME.levels     [outputs, inputs / 2] uint8: the levels of inputs 2i and 2i + 1 are the low and
                    the high four bits
    NAME.scale      [outputs, groups] bfloat16
    NAME.middle     [outputs, groups] bfloat16

All other tensors are the checkpoint's. Files are made one after the other, whole or not at all. A
copy that was broken off goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from inference.errors import InvalidRequest, UnsupportedModel
from inference.file_model import Count, Record, Text, read_record
from inference.json_file import read_json
from inference.model.checkpoint import (
    LOW_BIT,
    Loading,
    assign,
    empty_decoder,
    fingerprint,
    fitting_config,
    is_used,
    opened,
    read_tensors,
)
from inference.model.decoder import Decoder
from inference.model.layer_offload import LAYERS, LayerFiles
from inference.model.quantized import CutHead, Int4Matrix, Int4Product, to_int4
from inference.model.sizes import check_shape
from inference.whole_file import replacing, write_whole

_REST = "rest.safetensors"
_SCHEMA = 1
_COPIED = ("*.json", "tokenizer.model", "*.jinja")
_NOT_COPIED = ("*.safetensors.index.json", LOW_BIT)
_PARTS = (".levels", ".scale", ".middle")
_HEAD, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"

Tell = Callable[[Loading], None]


@dataclass(frozen=True)
class LowBitCopy(Record):
    """What a directory is a copy of."""

    schema: int
    model: Text  # name of the checkpoint
    made_from: Text  # fingerprint of the checkpoint
    layers: Count


def is_low_bit(directory: Path) -> bool:
    """Whether the directory holds a 4-bit copy, or a part of one."""
    return (directory / LOW_BIT).is_file() or (directory / _file(0)).is_file()


def read_manifest(directory: Path) -> LowBitCopy:
    """Read what a directory is a copy of. Raises UnsupportedModel for one that was broken off."""
    path = directory / LOW_BIT
    if not path.is_file():
        raise UnsupportedModel(
            f"{directory} holds a 4-bit copy that was broken off: make it again, which goes on "
            "where it stopped"
        )
    manifest = read_record(read_json(path, UnsupportedModel), LowBitCopy)
    if manifest.schema != _SCHEMA:
        raise UnsupportedModel(
            f"{path} has schema {manifest.schema}, {_SCHEMA} is read here: make the copy again"
        )
    return manifest


def source_fingerprint(directory: Path) -> str:
    """Return the fingerprint of a checkpoint, or of the one that a copy was made from."""
    return read_manifest(directory).made_from if is_low_bit(directory) else fingerprint(directory)


def write_low_bit(checkpoint: Path, name: str, out: Path, tell: Tell) -> None:
    """Write the 4-bit copy of a checkpoint, a layer at a time.

    name: what the checkpoint is called
    out: directory of the copy, empty or begun

    Raises UnsupportedModel for a checkpoint that cannot be copied, InvalidRequest for a directory
    that holds something else.
    """
    config = empty_decoder(checkpoint, 1, 1).config
    made_from = fingerprint(checkpoint)
    _check_out(out, checkpoint, made_from)
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(".*.safetensors.*"):  # by a process that was killed
        left.unlink()
    files, size = LayerFiles(checkpoint, config), 1 + config.layers
    for index in range(config.layers):
        tell(Loading(1, 1, index, size))
        if not _is_there(out / _file(index), made_from):
            _write(out / _file(index), made_from, files.tensors(index))
    tell(Loading(1, 1, config.layers, size))
    if not _is_there(out / _REST, made_from):
        rest = {
            part: tensor
            for part, tensor in read_tensors(checkpoint, lambda part: is_used(config, part))
            if not part.startswith(LAYERS)
        }
        _write(out / _REST, made_from, ({_HEAD: rest[_EMBEDDINGS]} | rest).items())
    kept = (path for pattern in _COPIED for path in checkpoint.glob(pattern))
    for path in kept:
        if not any(path.match(pattern) for pattern in _NOT_COPIED):
            with replacing(out / path.name) as part:
                shutil.copyfile(path, part)
    manifest = LowBitCopy(_SCHEMA, name, made_from, config.layers)
    write_whole(out / LOW_BIT, json.dumps(asdict(manifest), indent=2) + "\n")


def load_low_bit(
    directory: Path,
    *,
    positions: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
    tell: Tell = lambda loading: None,
) -> Decoder:
    """Load the Decoder of a 4-bit copy. Arguments and errors are those of load_decoder()."""
    manifest = read_manifest(directory)
    config = fitting_config(directory, positions, vocabulary)
    with torch.device("meta"):
        decoder = Decoder(config, positions, vocabulary)
    rest = _read(directory / _REST, manifest.made_from)
    head = _matrix(_HEAD, rest, device)
    decoder.lm_head = CutHead(Int4Product(Int4Matrix(*(part[:vocabulary] for part in head)), None))
    like = torch.empty(0, dtype=dtype or rest[_EMBEDDINGS].dtype, device=device)
    for name, tensor in rest.items():
        assign(decoder, name, tensor.to(like))
    for index, layer in enumerate(decoder.model.layers):
        tell(Loading(1, 1, index, config.layers))
        path = directory / _file(index)
        _fill(layer, path, _read(path, manifest.made_from), like)
    return decoder.to(device).eval()


def _file(layer: int) -> str:
    return f"layer-{layer:05d}.safetensors"


def _check_out(out: Path, checkpoint: Path, made_from: str) -> None:
    """Raise InvalidRequest for a directory that holds anything but this copy."""
    if any(out.glob("model*.safetensors")) or out.resolve() == checkpoint.resolve():
        raise InvalidRequest(f"{out} holds a checkpoint: name another directory for its copy")
    if (out / LOW_BIT).is_file() and read_manifest(out).made_from != made_from:
        raise InvalidRequest(
            f"{out} holds the 4-bit copy of {read_manifest(out).model}: name another directory"
        )


def _is_there(path: Path, made_from: str) -> bool:
    """Whether this file of the copy was made before."""
    if not path.is_file():
        return False
    with opened(path) as file:
        return bool(file.metadata() == {"made_from": made_from})


def _write(path: Path, made_from: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    parts = dict[str, Tensor]()
    for name, tensor in tensors:
        if name.endswith("_proj.weight") or name == _HEAD:
            levels, scale, middle = to_int4(tensor)
            packed = (levels[:, ::2] | levels[:, 1::2] << 4).to(torch.uint8)
            given = (packed, scale, middle)
            parts |= {name + part: one for part, one in zip(_PARTS, given, strict=True)}
        else:
            parts[name] = tensor.clone()
    with replacing(path) as part:
        save_file(parts, part, metadata={"made_from": made_from})


def _read(path: Path, made_from: str) -> dict[str, Tensor]:
    """Read a file of a copy. Raises UnsupportedModel for one that is missing or of another copy."""
    if not _is_there(path, made_from):
        raise UnsupportedModel(f"{path} is missing or of another copy: make the copy again")
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _fill(layer: nn.Module, path: Path, tensors: dict[str, Tensor], like: Tensor) -> None:
    """Give a layer that has no weights its own, which were read from `path`.

    like: has their device, and the precision of all but matrices
    """
    matrices = [(name, part) for name, part in layer.named_modules() if isinstance(part, nn.Linear)]
    for name, linear in matrices:
        matrix = _matrix(f"{name}.weight", tensors, like.device)
        check_shape(path, name, matrix.levels.shape, linear.weight.shape)
        bias = tensors.pop(f"{name}.bias", None)
        owner, _, leaf = name.rpartition(".")
        product = Int4Product(matrix, None if bias is None else bias.to(like.device))
        setattr(layer.get_submodule(owner), leaf, product)
    for name, tensor in tensors.items():
        assign(layer, name, tensor.to(like))


def _matrix(name: str, tensors: dict[str, Tensor], device: torch.device) -> Int4Matrix:
    """Take a matrix out of a file's tensors."""
    packed, scale, middle = (tensors.pop(name + part).to(device) for part in _PARTS)
    levels = torch.stack((packed & 15, packed >> 4), -1).flatten(1).int()
    return Int4Matrix(levels, scale, middle)
