"""Base classes of models, for every file format: on disk, and once loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, Self

import inference
from inference.backends import Model
from inference.command import say
from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import allowed_length
from inference.model.checkpoints.hub import find_model, is_gguf
from inference.model.checkpoints.weight_files import unread_files
from inference.text.tokenizer import Tokenizer
from outrider.models.machine import Conditions
from outrider.options.groups import DeviceOptions

if TYPE_CHECKING:
    import torch


class Capacity(NamedTuple):
    """Capacity of a loaded model: concurrent sequences, and the tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # further slots of each row, for trees of candidates
    max_nodes: int  # per forward pass
    ids: int | None = None  # only ids below this are proposed; None: all the tokenizer's

    def vocabulary(self, vocabulary: int) -> int:
        """Return how many of a tokenizer's ids get probabilities."""
        return vocabulary if self.ids is None else min(vocabulary, self.ids)

    @property
    def slots(self) -> int:
        """Slots of a row: its sequence and the spare ones."""
        return self.sequence_length + self.spare


EMBEDDED = Path(inference.__file__).parent / "data"


def find_directory(name: str | None, embedded: str, *, weights: bool = True) -> Path:
    """Find a model's directory by its path or hub name; without a name, the directory of the
    embedded model of this kind.

    weights: whether weights are needed
    """
    if name is None:
        return EMBEDDED / embedded
    if is_gguf(name):
        raise UnsupportedModel(f"{name} is a GGUF file: a checkpoint in safetensors is needed here")
    path = Path(name)
    if path.is_dir() and any(path.glob("*.gguf")) and not any(path.glob("*.safetensors")):
        raise UnsupportedModel(f"{name} holds weights as GGUF only: name the file itself")
    return find_model(name, weights=weights)


def note_unread(directory: Path) -> None:
    """Report weight files in a model's directory that are not read."""
    if names := unread_files(directory):
        say(f"note: {directory}: ignored, not weights of the model: {', '.join(names[:8])}")


class LoadedModel(Model, Protocol):
    """A model on its device."""

    @property
    def device(self) -> torch.device | str: ...

    @property
    def dtype(self) -> torch.dtype | str: ...


class Facts(Protocol):
    """Facts stated in the files of a model.

    stop_ids: ids that end the output
    limited_by: what limits max_positions
    """

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def limited_by(self) -> str: ...


@dataclass(frozen=True)
class FoundModel(ABC):
    """A model on disk, ready to be loaded.

    name: the name that clients see
    directory: the directory of its files; for a GGUF file, the file itself
    kind: its format in words
    """

    name: str
    directory: Path
    config: Facts
    tokenizer: Tokenizer
    kind: ClassVar[str]

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end the output."""
        return self.config.stop_ids | self.tokenizer.end_ids

    def sequence_length(self, requested: int | None) -> int:
        """Return the sequence length, prompt and output together. Raises InvalidRequest beyond the
        model's limit.
        """
        config = self.config
        return allowed_length(requested, self.name, config.max_positions, config.limited_by)

    def settled(self, options: DeviceOptions, *, drafts: bool) -> Self:
        """Return the model with a precision picked (and printed) if the options do not set one.

        drafts: whether the model drafts, so that its weights may be rounded
        """
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """Return an identifier, which differs between models that compute differently."""

    def check(self, options: DeviceOptions) -> None:
        """Raise InvalidRequest for a device that this machine does not have."""
        from outrider.models.devices import pick_device

        pick_device(options.device)

    @abstractmethod
    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        """Load the model on the device of the options, and print the device on stderr."""

    def conditions(self, model: LoadedModel) -> Conditions:
        """Return the conditions under which the loaded model's times are measured."""
        from outrider.models.devices import conditions

        return conditions(model.device)
