"""Models that other libraries compute: GGUF files by llama.cpp, and checkpoints by transformers."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from inference.backends import Model
from inference.backends.gguf.library import GgufFacts, check_gpu, fingerprint, supports_gpu
from inference.command import say
from inference.errors import InvalidRequest, Mismatch, UnsupportedModel
from inference.model.checkpoints.config import FAMILIES
from inference.model.checkpoints.library_config import LibraryConfig, read_library_config
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import Capacity, FoundModel, note_unread
from outrider.models.machine import Conditions, cores, count_threads, processor
from outrider.options.groups import DeviceOptions

if TYPE_CHECKING:
    from inference.backends.gguf.model import GgufModel
    from inference.backends.libraries.transformers_model import TransformersModel


@dataclass(frozen=True)
class GgufFile(FoundModel):
    """A model in a GGUF file."""

    config: GgufFacts
    kind: ClassVar[str] = "a GGUF file"

    @classmethod
    def find(cls, name: str) -> GgufFile:
        """Read a file's header and tokenizer. Raises an OutriderError that states the remedy."""
        path = Path(name)
        facts = GgufFacts.read(path)
        return cls(path.name, path, facts, _tokenizer(path, facts))

    def fingerprint(self) -> str:
        return fingerprint(self.directory)

    def check(self, options: DeviceOptions) -> None:
        _gpu(options.device)

    def conditions(self, model: Model) -> Conditions:
        loaded = cast("GgufModel", model)  # by load()
        return Conditions(f"{loaded.device}, {processor()}, llama.cpp", loaded.threads)

    def load(self, options: DeviceOptions, capacity: Capacity) -> GgufModel:
        from inference.backends.gguf.model import load_gguf

        if options.dtype is not None:
            raise InvalidRequest(
                f"--dtype {options.dtype}: a GGUF file has its own precision, {self.config.weights}"
            )
        gpu = _gpu(options.device)
        threads = options.threads or cores()
        start = time.perf_counter()
        model = load_gguf(
            self.directory,
            self.config,
            rows=capacity.rows,
            capacity=capacity.slots,
            max_nodes=capacity.max_nodes,
            vocabulary=capacity.vocabulary(self.tokenizer.vocabulary),
            threads=threads,
            gpu=gpu,
        )
        where = f"cpu ({count_threads(threads)})" if gpu is None else f"GPU {gpu}"
        say(
            f"{self.name}: {self.config.parameters / 1e6:.1f} M parameters, {self.config.weights} "
            f"by llama.cpp on {where}, loaded in {time.perf_counter() - start:.1f} s"
        )
        return model


def gguf_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer of a GGUF file, without its weights."""
    return _tokenizer(path, GgufFacts.read(path))


def _tokenizer(path: Path, facts: GgufFacts) -> Tokenizer:
    """Read tokenizer.json next to the file, else the file's own tokenizer. Raises Mismatch if the
    two map an id to different tokens.

    A GGUF file names its pre-tokenizer in one word, and has no normaliser. So only tokenizer.json
    is certain to split every string as the safetensors checkpoint's tokenizer does.
    """
    beside = path.parent / "tokenizer.json"
    tokenizer = Tokenizer(path.parent if beside.is_file() else path)
    for token, number in sorted(tokenizer.ids().items(), key=lambda item: item[1]):
        entry = facts.tokens[number] if number < len(facts.tokens) else None
        if entry == token:
            continue
        if beside.is_file():
            raise Mismatch(
                f"{beside} is not of {path.name}: id {number} is {token!r} there and {entry!r} in "
                "the GGUF file; keep them in two directories"
            )
        raise Mismatch(
            f"{path}: id {number} is {entry!r}, and {token!r} in the tokenizer made from it; put "
            "the tokenizer.json of its checkpoint beside it"
        )
    return tokenizer


def _gpu(device: str) -> int | None:
    """Return the number of the GPU to use; None for the CPU. `auto` uses a GPU if llama.cpp was
    built with support for one (CUDA, Metal or another).
    """
    if device == "cpu" or (device == "auto" and not supports_gpu()):
        return None
    if device.startswith("neuron"):
        raise UnsupportedModel(
            f"--device {device}: llama.cpp computes a GGUF file on a CPU or a GPU; use --device "
            "cpu, cuda or auto, or a checkpoint in safetensors"
        )
    check_gpu()
    return int(device.partition(":")[2] or 0)


@dataclass(frozen=True)
class LibraryCheckpoint(FoundModel):
    """A safetensors checkpoint of any causal architecture with a key-value cache."""

    config: LibraryConfig
    kind: ClassVar[str] = "a model of the transformers library"

    @classmethod
    def find(cls, name: str, directory: Path) -> LibraryCheckpoint:
        """Read a directory's config and tokenizer. Raises UnsupportedModel and MissingExtra."""
        return cls(name, directory, read_library_config(directory), Tokenizer(directory))

    def fingerprint(self) -> str:
        from inference.model.checkpoints.weight_files import fingerprint

        identity = f"{fingerprint(self.directory)} by transformers"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    def check(self, options: DeviceOptions) -> None:
        if options.device.startswith("neuron"):
            raise UnsupportedModel(
                f"--device {options.device}: {self.name} is of type {self.config.model_type}; only "
                f"{', '.join(FAMILIES)} can be compiled: use --device cpu, cuda or auto"
            )
        super().check(options)

    def load(self, options: DeviceOptions, capacity: Capacity) -> TransformersModel:
        from inference.backends.libraries.transformers_loading import load_transformers
        from inference.model.checkpoints.checkpoint import DTYPES
        from outrider.models.devices import describe, pick_device, set_threads

        self.check(options)
        device, start = pick_device(options.device), time.perf_counter()
        note_unread(self.directory)
        model = load_transformers(
            self.directory,
            self.config,
            rows=capacity.rows,
            capacity=capacity.slots,
            max_nodes=capacity.max_nodes,
            vocabulary=capacity.vocabulary(self.tokenizer.vocabulary),
            dtype=DTYPES[options.dtype] if options.dtype else None,
            device=device,
        )
        parameters = sum(parameter.numel() for parameter in model.library.parameters())
        if device.type == "cpu":
            set_threads(options.threads, parameters)
        say(
            f"{self.name}: {parameters / 1e6:.1f} M parameters, "
            f"{str(model.dtype).removeprefix('torch.')} by transformers on {describe(device)}, "
            f"loaded in {time.perf_counter() - start:.1f} s"
        )
        return model
