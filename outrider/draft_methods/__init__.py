"""Draft methods: one file for each value of --draft.

Each file defines find(), and has a row in outrider/options/draft_flags.py. The draft that find()
returns implements the whole method, so pools, clients and targets do not depend on the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

from inference.backends import Model
from inference.backends.wrappers import KnownTokens
from inference.drafters.growing_proposer import Draft
from inference.text.tokenizer import Tokenizer
from inference.times import Table
from outrider.models.found_model import Capacity, FoundModel, LoadedModel
from outrider.models.profiles import Profiles
from outrider.options.draft_flags import check_method, method_of
from outrider.options.groups import DeviceOptions, DraftModelOptions


@dataclass(frozen=True)
class FoundDraft:
    """A draft before loading.

    tokenizer: the model's own; after for_target(), the target's
    use: creates the draft from the loaded model
    """

    model: FoundModel
    tokenizer: Tokenizer
    use: Callable[[Any], Draft]

    @classmethod
    def of(cls, model: FoundModel, use: Callable[[LoadedModel], Draft] = Draft) -> FoundDraft:
        """Return the draft that uses this model."""
        return cls(model, model.tokenizer, use)

    @property
    def name(self) -> str:
        return self.model.name

    def for_target(self, tokenizer: Tokenizer) -> FoundDraft:
        """Return the draft for a target with this tokenizer. Ids in both must agree."""
        return replace(self, tokenizer=tokenizer)

    def settled(self, options: DeviceOptions) -> FoundDraft:
        """Return the draft with a precision picked for it, if the options do not set one."""
        return replace(self, model=self.model.settled(options, drafts=True))

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        """Load the draft on the chosen device, and print the device on stderr.

        The draft proposes only ids that its target has.
        """
        ids, model_ids = self.tokenizer.vocabulary, self.model.tokenizer.vocabulary
        model = self.model.load(options, capacity._replace(ids=ids))
        return self.use(model if model_ids >= ids else KnownTokens(model, model_ids))

    def times(self, profiles: Profiles, draft: Draft, length: int) -> Table:
        """Return the seconds of the loaded draft's forward pass, by its shape.

        length: maximum sequence length of the loaded draft
        """
        return profiles.draft(self.model, cast("LoadedModel", draft.model), length)


class DraftMethod(Protocol):
    """The module of a draft method."""

    def find(self, options: DraftModelOptions, target: Model | None) -> FoundDraft:
        """Find the draft. Raises InvalidRequest and UnsupportedModel.

        target: model in the same process; None for a draft on a client's machine
        """
        ...


def find_draft(options: DraftModelOptions, target: Model | None = None) -> FoundDraft:
    """Find the draft: by the method of --draft, else the checkpoint of --draft_model or --model,
    else the embedded draft. Raises MissingExtra if a package that the draft needs is missing.

    target: model in the same process; None for a draft on a client's machine
    """
    check_method(options)
    method = cast("DraftMethod", import_module(f"{__name__}.{method_of(options)}"))
    return method.find(options, target)
