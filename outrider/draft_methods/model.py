"""--draft model: a checkpoint of the target's family."""

from __future__ import annotations

from dataclasses import replace

from inference.backends import Model
from outrider.models import Checkpoint, find_checkpoint
from outrider.options.groups import DraftModelOptions
from outrider.options.reduction import ReductionOptions
from outrider.reduction import Reduction


def find(options: DraftModelOptions, target: Model | None) -> Checkpoint:
    """The checkpoint of --draft_model or --model, or the embedded one, reduced as asked."""
    found = find_checkpoint(options.draft_name, "draft")
    if not isinstance(options, ReductionOptions):
        return found
    kept = Reduction(options.draft_quantization, options.draft_head_tokens)
    return replace(found, reduction=kept)
