"""--draft model: a checkpoint or GGUF file of the target's family."""

from __future__ import annotations

from inference.backends import Model
from outrider.gguf_file import GgufFile
from outrider.models import Checkpoint, find_named
from outrider.options.groups import DraftModelOptions


def find(options: DraftModelOptions, target: Model | None) -> Checkpoint | GgufFile:
    """The checkpoint or GGUF file of --draft_model or --model, or the embedded one."""
    return find_named(options.draft_name, "draft")
