"""Draft methods: a file for each value of --draft.

Each file has find(), and a row in outrider/options/draft_flags.py. The result of find() implements
the whole method, so pools, clients and targets do not depend on the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

from inference.backends import Model
from inference.backends.known_tokens import KnownTokens
from inference.drafters.draft import Draft
from inference.text.tokenizer import Tokenizer
from inference.times import Table
from outrider.models.capacity import Capacity
from outrider.models.found_model import FoundModel, LoadedModel
from outrider.models.profiles import Profiles
from outrider.options.draft_flags import check_method, method_of
from outrider.options.groups import DeviceOptions, DraftModelOptions


@dataclass(frozen=True)
class FoundDraft:
    """A draft before it is loaded.

    tokenizer: the model's; that of the target after for_target()
    use: creates the draft from the loaded model
    """

    model: FoundModel
    tokenizer: Tokenizer
    use: Callable[[Any], Draft]

    @classmethod
    def of(cls, model: FoundModel, use: Callable[[LoadedModel], Draft] = Draft) -> FoundDraft:
        """The draft of a model."""
        return cls(model, model.tokenizer, use)

    @property
    def name(self) -> str:
        return self.model.name

    def for_target(self, tokenizer: Tokenizer) -> FoundDraft:
        """The draft for a target with this tokenizer. Shared ids have to agree."""
        return replace(self, tokenizer=tokenizer)

    def settled(self, options: DeviceOptions) -> FoundDraft:
        """Pick the precision if the options do not set it."""
        return replace(self, model=self.model.settled(options, drafts=True))

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        """Load it on the chosen device, and print the device on stderr.

        It proposes only ids that its target has.
        """
        ids, model_ids = self.tokenizer.vocabulary, self.model.tokenizer.vocabulary
        model = self.model.load(options, capacity._replace(ids=ids))
        return self.use(model if model_ids >= ids else KnownTokens(model, model_ids))

    def times(self, profiles: Profiles, draft: Draft, length: int) -> Table:
        """Seconds of a call of the loaded draft by its shape.

        length: maximum sequence length of the loaded draft
        """
        return profiles.draft(self.model, cast(LoadedModel, draft.model), length)


class DraftMethod(Protocol):
    """The module of one method."""

    def find(self, options: DraftModelOptions, target: Model | None) -> FoundDraft:
        """Find the draft. Raises InvalidRequest and UnsupportedModel.

        target: model in the same process; None for a draft on a client's machine
        """
        ...


def find_draft(options: DraftModelOptions, target: Model | None = None) -> FoundDraft:
    """Find the draft: by the method of --draft, else the checkpoint of --draft_model or --model, or
    the embedded one. Raises MissingExtra if a package for it is not installed.

    target: model in the same process; None for a draft on a client's machine
    """
    check_method(options)
    method = cast(DraftMethod, import_module(f"{__name__}.{method_of(options)}"))
    return method.find(options, target)
