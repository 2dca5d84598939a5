"""--draft model: a checkpoint of the target's family."""

from __future__ import annotations

from inference.backends import Model
from outrider.models import Checkpoint, find_checkpoint
from outrider.options.groups import DraftModelOptions


def find(options: DraftModelOptions, target: Model | None) -> Checkpoint:
    """The checkpoint of --draft_model or --model, or the embedded one."""
    return find_checkpoint(options.draft_name, "draft")
