"""Models before and after they are loaded, whatever file they come from."""

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

    def sequence_length(self, asked: int | None) -> int:
        """The sequence length, prompt and output together. Raises InvalidRequest beyond the model's
        limit.
        """
        ...

    def fingerprint(self) -> str:
        """An identifier that differs for every model that computes differently."""
        ...

    def check(self, options: DeviceOptions) -> None:
        """Raise InvalidRequest for a device that this machine does not have."""
        ...

    def settled(self, options: DeviceOptions, *, drafts: bool) -> FoundModel:
        """Pick the precision where the options leave it open, and print it.

        drafts: the model drafts, so its weights may be rounded
        """
        ...

    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        """Load the model on the device of the options, which is printed on stderr."""
        ...

    def conditions(self, model: LoadedModel) -> Conditions:
        """The conditions under which times of the loaded model are measured."""
        ...
