"""Models on disk, for every file format, and what they are once loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from inference.backends import Model
from inference.model.checkpoints.config import allowed_length
from inference.text.tokenizer import Tokenizer
from outrider.models.capacity import Capacity
from outrider.models.machine import Conditions
from outrider.options.groups import DeviceOptions

if TYPE_CHECKING:
    import torch


class LoadedModel(Model, Protocol):
    """A model on its device."""

    @property
    def device(self) -> torch.device | str: ...

    @property
    def dtype(self) -> torch.dtype | str: ...


class Facts(Protocol):
    """Facts that the files of a model state.

    stop_ids: end a text
    limited_by: what sets max_positions
    """

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def limited_by(self) -> str: ...


@dataclass(frozen=True)
class FoundModel(ABC):
    """A model on disk, which can be loaded.

    name: as clients see it
    directory: of its files; for a GGUF file, the file itself
    kind: the format in words
    """

    name: str
    directory: Path
    config: Facts
    tokenizer: Tokenizer
    kind: ClassVar[str]

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        return self.config.stop_ids | self.tokenizer.end_ids

    def sequence_length(self, requested: int | None) -> int:
        """The sequence length, prompt and output together. Raises InvalidRequest beyond the model's
        limit.
        """
        config = self.config
        return allowed_length(requested, self.name, config.max_positions, config.limited_by)

    def settled(self, options: DeviceOptions, *, drafts: bool) -> Self:
        """Pick the precision if the options do not set it, and print it.

        drafts: the model drafts, so its weights may be rounded
        """
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """An identifier; models that compute differently have different ones."""

    @abstractmethod
    def check(self, options: DeviceOptions) -> None:
        """Raise InvalidRequest for a device that this machine does not have."""

    @abstractmethod
    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        """Load the model on the device of the options, and print the device on stderr."""

    @abstractmethod
    def conditions(self, model: LoadedModel) -> Conditions:
        """The conditions of the loaded model's measured times."""
