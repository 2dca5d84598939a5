"""--draft model: a checkpoint or GGUF file of the target's family."""

from __future__ import annotations

from dataclasses import replace

from inference.backends import Model
from inference.errors import InvalidRequest
from outrider.draft_methods import FoundDraft
from outrider.models.capacity import WHOLE, Reduction
from outrider.models.loading import Checkpoint, find_named
from outrider.options.groups import DraftModelOptions, ReductionOptions, backend_of


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """The checkpoint or GGUF file of --draft_model or --model, or the embedded one, reduced as
    asked. Raises InvalidRequest where another than a checkpoint of our decoder is to be reduced.
    """
    found = find_named(options.draft_name, "draft", backend_of(options))
    if not isinstance(options, ReductionOptions):
        return FoundDraft.of(found)
    kept = Reduction(options.draft_quantization, options.draft_head_tokens)
    if isinstance(found, Checkpoint):
        return FoundDraft.of(replace(found, reduction=kept))
    if kept != WHOLE:
        flags = ", ".join(options.given(ReductionOptions))
        raise InvalidRequest(f"{flags}: {found.name} is {found.kind}, which stays as it is")
    return FoundDraft.of(found)
