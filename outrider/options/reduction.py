"""Flags that make a draft cheaper to call."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from pydantic import model_validator
from typing_extensions import Self

from outrider.options.groups import DraftModelOptions, SourceOptions
from outrider.options.values import Quantization


class ReductionOptions(DraftModelOptions, title="models and devices"):
    """How much of a draft's checkpoint is kept."""

    draft_quantization: Quantization | None = None
    """round the draft's matrices to 8 or 4 bits, on cpu or cuda (docs/drafts.md)"""
    draft_head_tokens: Annotated[int, Ge(64)] | None = None
    """the draft guesses only among the N lowest ids of its vocabulary, which are the frequent ones
    in most tokenizers"""

    @model_validator(mode="after")
    def _of_a_checkpoint(self) -> Self:
        given = self.given(ReductionOptions)
        if given and isinstance(self, SourceOptions) and self.method != "model":
            raise ValueError(f"{given[0]} is for --draft model, got --draft {self.draft}")
        return self
