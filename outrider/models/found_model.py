"""Protocols of models before and after loading, for every file format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from inference.backends import Model
from inference.text import Tokenizer
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


class FoundModel(Protocol):
    """A model on disk, which can be loaded."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        ...

    def sequence_length(self, requested: int | None) -> int:
        """The sequence length, prompt and output together. Raises InvalidRequest beyond the model's
        limit.
        """
        ...

    def fingerprint(self) -> str:
        """An identifier; models that compute differently have different ones."""
        ...

    def check(self, options: DeviceOptions) -> None:
        """Raise InvalidRequest for a device that this machine does not have."""
        ...

    def settled(self, options: DeviceOptions, *, drafts: bool) -> FoundModel:
        """Pick the precision if the options do not set it, and print it.

        drafts: the model drafts, so its weights may be rounded
        """
        ...

    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        """Load the model on the device of the options, and print the device on stderr."""
        ...

    def conditions(self, model: LoadedModel) -> Conditions:
        """The conditions of the loaded model's measured times."""
        ...
