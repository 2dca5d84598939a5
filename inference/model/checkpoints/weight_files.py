"""The weight files of a Hugging Face directory, selected as by the transformers library, and their
headers. Reading these needs neither torch nor safetensors.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import UnsupportedModel
from inference.files.json_file import Json, read_json, shown

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
IGNORED = ("rotary_emb.inv_freq",)
"""Suffixes of tensors to ignore: the library computes these from config.json."""

STORED_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Supported precisions, by their names in safetensors files."""

_FLOATS = {*STORED_TYPES, "F64", "F8_E4M3", "F8_E5M2"}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes, the safetensors library's limit
_SAMPLE, _CHUNK = 1 << 16, 1 << 24  # bytes


class StoredTensor(NamedTuple):
    """A tensor in the header of a file."""

    file: Path
    dtype: str  # such as BF16
    shape: tuple[int, ...]
    start: int  # offset in the file in bytes
    end: int


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files with the weights: model.safetensors, or the shards in the index.
    Raises UnsupportedModel if a file is missing, and if there is an adapter.
    """
    if (directory / "adapter_config.json").is_file():
        raise UnsupportedModel(
            f"{directory} has an adapter beside its weights (adapter_config.json), which would "
            "change them: merge the two (peft's merge_and_unload), or move the adapter away"
        )
    paths = _expected_files(directory)
    for path in paths:
        if not path.is_file():
            raise UnsupportedModel(
                f"{directory} has no {path.name}: weights are read from safetensors only"
            )
    return paths


def _expected_files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if (directory / _SINGLE).is_file() or not index.is_file():
        return [directory / _SINGLE]
    listed = read_json(index, UnsupportedModel).field("weight_map").fields().values()
    return [directory / name for name in sorted({_beside(name) for name in listed})]


def _beside(name: Json) -> str:
    """Return the name of a file in an index. It must be in the same directory."""
    if name.line() != Path(name.line()).name:
        name.refuse("the name of a file in the same directory")
    return name.line()


def unread_files(directory: Path) -> list[str]:
    """Return the names of safetensors files in the directory that the model does not use."""
    used = {path.name for path in weight_files(directory)}
    return sorted(path.name for path in directory.glob("*.safetensors") if path.name not in used)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file. Raises UnsupportedModel if it is damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise ValueError("its header is longer than the file")
            tensors = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        return {name: _stored(path, 8 + length, size, facts) for name, facts in tensors.items()}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise UnsupportedModel(f"{path} cannot be read, download it again: {error}") from error


def _stored(path: Path, begin: int, size: int, facts: Any) -> StoredTensor:
    shape = tuple(map(int, facts["shape"]))
    start, end = (begin + int(offset) for offset in facts["data_offsets"])
    if not begin <= start <= end <= size or min(shape, default=0) < 0:
        raise ValueError("a tensor lies outside the file")
    return StoredTensor(path, str(facts["dtype"]), shape, start, end)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return all tensors of the weight files by name. The last one with a name counts."""
    return {
        name: tensor
        for path in weight_files(directory)
        for name, tensor in read_header(path).items()
    }


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by name."""
    return {name: tensor.shape for name, tensor in stored_tensors(directory).items()}


def check_float(directory: Path, name: str, tensor: StoredTensor) -> None:
    """Raise UnsupportedModel for a tensor of integers, which quantized models have."""
    if tensor.dtype not in _FLOATS:
        raise UnsupportedModel(
            f"{directory}: tensor {name} is of {shown(tensor.dtype)}: weights of "
            f"{', '.join(STORED_TYPES.values())} are needed"
        )


def stored_type(directory: Path) -> str:
    """Return a checkpoint's default precision: the one in config.json, otherwise that of the most
    bytes of weights. Raises UnsupportedModel if it is not among STORED_TYPES.
    """
    raw = read_json(directory / "config.json", UnsupportedModel)
    sections = [raw, *(raw.field(name) for name in ("text_config",) if raw.field(name).value)]
    for field in (section.field(name) for section in sections for name in ("dtype", "torch_dtype")):
        if field.absent or field.value == "auto":
            continue
        name = field.text().removeprefix("torch.")
        return name if name in STORED_TYPES.values() else field.refuse(_type_choice())
    sizes = Counter[str]()
    for name, tensor in stored_tensors(directory).items():
        sizes[tensor.dtype] += 0 if name.endswith(IGNORED) else tensor.end - tensor.start
    largest = max(sizes, key=sizes.__getitem__, default="")
    if largest not in STORED_TYPES:
        raise UnsupportedModel(
            f"{directory}: its weights are of {shown(largest)}: {_type_choice()} is needed"
        )
    return STORED_TYPES[largest]


def _type_choice() -> str:
    return f"{' or '.join(STORED_TYPES.values())}, or --dtype,"


def has_own_head(directory: Path) -> bool:
    """Return whether the files have a head that differs from the embeddings. If so, the two are not
    tied, regardless of config.json.
    """
    paths = _expected_files(directory)
    if not all(path.is_file() for path in paths):  # only the config was downloaded
        return False
    stamps = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _has_own_head(directory, stamps)


@lru_cache(maxsize=8)
def _has_own_head(directory: Path, _stamps: tuple[tuple[Path, int, int], ...]) -> bool:
    try:
        tensors = stored_tensors(directory)
    except UnsupportedModel:  # the loader of the weights reports it
        return False
    head, embeddings = tensors.get(HEAD), tensors.get(EMBEDDINGS)
    return head is not None and embeddings is not None and not _equal(head, embeddings)


def _equal(tensor: StoredTensor, reference: StoredTensor) -> bool:
    if (tensor.dtype, tensor.shape, tensor.end - tensor.start) != (
        reference.dtype,
        reference.shape,
        reference.end - reference.start,
    ):
        return False
    with tensor.file.open("rb") as first, reference.file.open("rb") as second:
        first.seek(tensor.start)
        second.seek(reference.start)
        remaining = tensor.end - tensor.start
        while remaining:
            size = min(remaining, _CHUNK)
            if first.read(size) != second.read(size):
                return False
            remaining -= size
    return True


def fingerprint(directory: Path) -> str:
    """Return a hash of the configuration and of each weight file's size, head and tail, which
    distinguishes checkpoints without reading them completely.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in weight_files(directory):
        digest.update(f"{path.name}:".encode())
        for piece in sample(path):
            digest.update(piece)
    return digest.hexdigest()[:32]


def sample(path: Path) -> Iterator[bytes]:
    """Yield a file's size, head and tail."""
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        yield file.read(_SAMPLE)
        file.seek(max(0, size - _SAMPLE))
        yield file.read(_SAMPLE)
