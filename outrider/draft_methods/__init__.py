"""Models that draft, by the name that --draft gives them: a file here for each.

Such a file has find(), a Finder. Its name has a row in outrider/options/drafting.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from inference.backends import Model
from outrider.models.loading import FoundModel
from outrider.options.drafting import SourceOptions
from outrider.options.groups import DraftModelOptions


class Finder(Protocol):
    """The module of one method."""

    def find(self, options: DraftModelOptions, target: Model | None) -> FoundModel:
        """Find the model that drafts. Raises InvalidRequest and UnsupportedModel.

        target: the model beside which it is to draft; None for a draft on a client's machine
        """
        ...


def find_draft(options: DraftModelOptions, target: Model | None = None) -> FoundModel:
    """The model that drafts: that of --draft, else the checkpoint of --draft_model or --model, or
    the embedded one.

    target: the model beside which it is to draft; None for a draft on a client's machine
    """
    method = options.method if isinstance(options, SourceOptions) else "model"
    finder = cast(Finder, import_module(f"{__name__}.{method or 'model'}"))
    return finder.find(options, target)
