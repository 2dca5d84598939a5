"""Ways to draft, by the name that --draft gives them: a file here for each.

Such a file has find(). Its name has a row in outrider/options/draft_flags.py. What find() returns
knows all of the method: pools, clients and targets ask it and know no kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

from inference.backends import Model
from inference.backends.known_tokens import KnownTokens
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import ENDLESS
from inference.text import Tokenizer
from inference.times import Table
from outrider.models.capacity import Capacity
from outrider.models.found_model import FoundModel, LoadedModel
from outrider.models.profiles import Profiles
from outrider.options.draft_flags import check_method, method_of
from outrider.options.groups import DeviceOptions, DraftModelOptions


@dataclass(frozen=True)
class FoundDraft:
    """A draft that was found, and can be loaded.

    tokenizer: of its files; that of the target after for_target()
    model: None for one that names the children of nodes without a model
    use: makes the draft of the loaded model, if any
    """

    name: str
    tokenizer: Tokenizer
    model: FoundModel | None
    use: Callable[[Any], Draft]

    @classmethod
    def of(cls, model: FoundModel, use: Callable[[LoadedModel], Draft] = Draft) -> FoundDraft:
        """The draft of a model."""
        return cls(model.name, model.tokenizer, model, use)

    @property
    def ranks(self) -> bool:
        """Whether a model ranks nodes, so that it can grow whole trees for synchronous rounds."""
        return self.model is not None

    def sequence_length(self, asked: int | None) -> int:
        """The longest text that it drafts for. Raises InvalidRequest beyond its limit."""
        if self.model is not None:
            return self.model.sequence_length(asked)
        return ENDLESS if asked is None else asked

    def fingerprint(self) -> str:
        """Tell the draft from every one that drafts differently."""
        return self.name if self.model is None else self.model.fingerprint()

    def check(self, options: DeviceOptions) -> None:
        """Raise InvalidRequest for a device that this machine does not have."""
        if self.model is not None:
            self.model.check(options)

    def for_target(self, tokenizer: Tokenizer) -> FoundDraft:
        """The draft for a target with this tokenizer, whose ids agree as far as both have them."""
        return replace(self, tokenizer=tokenizer)

    def settled(self, options: DeviceOptions) -> FoundDraft:
        """Pick what it is computed in, where the options leave that open."""
        if self.model is None:
            return self
        return replace(self, model=self.model.settled(options, drafts=True))

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        """Load it on the chosen device. Prints what was chosen on stderr.

        It proposes no id that its target lacks.
        """
        if self.model is None:
            return self.use(None)
        ids, known = self.tokenizer.vocabulary, self.model.tokenizer.vocabulary
        model = self.model.load(options, capacity._replace(ids=ids))
        return self.use(model if known >= ids else KnownTokens(model, known))

    def times(self, profiles: Profiles, draft: Draft, length: int) -> Table:
        """Seconds of a call of the loaded draft by its shape; empty without a model.

        length: the longest sequence that it was loaded for
        """
        if self.model is None:
            return {}
        return profiles.draft(self.model, cast(LoadedModel, draft.model), length)


class DraftMethod(Protocol):
    """The module of one method."""

    def find(self, options: DraftModelOptions, target: Model | None) -> FoundDraft:
        """Find what drafts. Raises InvalidRequest and UnsupportedModel.

        target: the model beside which it is to draft; None for a draft on a client's machine
        """
        ...


def find_draft(options: DraftModelOptions, target: Model | None = None) -> FoundDraft:
    """Find what drafts: the method of --draft, else the checkpoint of --draft_model or --model, or
    the embedded one. Raises MissingExtra where what computes it is not installed.

    target: the model beside which it is to draft; None for a draft on a client's machine
    """
    check_method(options)
    method = cast(DraftMethod, import_module(f"{__name__}.{method_of(options)}"))
    return method.find(options, target)
