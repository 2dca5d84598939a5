"""Ways to draft, by the name that --draft gives them: a file here for each.

Such a file has find(). Its name has a row in outrider/options/drafting.py. What find() returns
knows all of the method: pools, clients and targets ask it and know no kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol, cast

from inference.backends import Model
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import ENDLESS
from inference.drafters.text_source import TextSource
from inference.text import Tokenizer
from outrider.models.loading import FoundModel, LoadedModel
from outrider.models.precision import settled
from outrider.models.profiles import Profiles
from outrider.models.sequence_length import Capacity
from outrider.options.drafting import SourceOptions
from outrider.options.groups import DeviceOptions, DraftModelOptions


class FoundDraft(Protocol):
    """A draft that was found, and can be loaded."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def ranks(self) -> bool:
        """Whether a model ranks nodes, so that it can grow whole trees for synchronous rounds."""
        ...

    def sequence_length(self, asked: int | None) -> int:
        """The longest text that it drafts for. Raises InvalidRequest beyond its limit."""
        ...

    def fingerprint(self) -> str:
        """Tell the draft from every one that drafts differently."""
        ...

    def settled(self, options: DeviceOptions) -> FoundDraft:
        """Pick what it is computed in, where the options leave that open."""
        ...

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        """Load it on the chosen device. Prints what was chosen on stderr."""
        ...

    def times(self, profiles: Profiles, draft: Draft, length: int) -> dict[int, float]:
        """Seconds of a call of the loaded draft by its nodes; empty without a model.

        length: the longest sequence that it was loaded for
        """
        ...


@dataclass(frozen=True)
class ModelDraft:
    """A FoundDraft with a model.

    use: makes the draft of the loaded model
    """

    model: FoundModel
    use: Callable[[LoadedModel], Draft] = Draft
    ranks = True

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def sequence_length(self, asked: int | None) -> int:
        return self.model.sequence_length(asked)

    def fingerprint(self) -> str:
        return self.model.fingerprint()

    def settled(self, options: DeviceOptions) -> ModelDraft:
        return replace(self, model=settled(self.model, options, drafts=True))

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        return self.use(self.model.load(options, capacity))

    def times(self, profiles: Profiles, draft: Draft, length: int) -> dict[int, float]:
        return profiles.draft(self.model, cast(LoadedModel, draft.model), length)


@dataclass(frozen=True)
class SourceDraft:
    """A FoundDraft without a model.

    source: makes what names the children of nodes, for one text at a time
    """

    name: str
    tokenizer: Tokenizer
    source: Callable[[], TextSource]
    ranks = False

    def sequence_length(self, asked: int | None) -> int:
        return ENDLESS if asked is None else asked

    def fingerprint(self) -> str:
        return self.name

    def settled(self, options: DeviceOptions) -> SourceDraft:
        return self

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        return Draft(None, source=self.source)

    def times(self, profiles: Profiles, draft: Draft, length: int) -> dict[int, float]:
        return {}


class DraftMethod(Protocol):
    """The module of one method."""

    def find(self, options: DraftModelOptions, target: Model | None) -> FoundDraft:
        """Find what drafts. Raises InvalidRequest and UnsupportedModel.

        target: the model beside which it is to draft; None for a draft on a client's machine
        """
        ...


def find_draft(options: DraftModelOptions, target: Model | None = None) -> FoundDraft:
    """Find what drafts: the method of --draft, else the checkpoint of --draft_model or --model, or
    the embedded one.

    target: the model beside which it is to draft; None for a draft on a client's machine
    """
    named = options.method if isinstance(options, SourceOptions) else None
    method = cast(DraftMethod, import_module(f"{__name__}.{named or 'model'}"))
    return method.find(options, target)
