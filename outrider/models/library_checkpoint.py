"""Checkpoints that the transformers library computes."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from inference.command import say
from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import FAMILIES
from inference.model.checkpoints.library_config import LibraryConfig, read_library_config
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import Capacity, FoundModel, note_unread
from outrider.options.groups import DeviceOptions

if TYPE_CHECKING:
    from inference.backends.libraries.transformers_model import TransformersModel


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
