"""Base classes of models, for every file format: on disk, and once loaded."""

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
