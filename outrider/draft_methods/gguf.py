"""--draft gguf: a GGUF file of the target's family, computed by llama.cpp."""

from __future__ import annotations

from inference.backends import Model
from inference.errors import InvalidRequest
from inference.model.checkpoints.hub import is_gguf
from outrider.draft_methods import FoundDraft
from outrider.models.gguf_file import GgufFile
from outrider.options.groups import DraftModelOptions


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """The file of --draft_model or --model."""
    name = options.draft_name
    if name is None or not is_gguf(name):
        got = "none" if name is None else name
        raise InvalidRequest(f"--draft gguf needs --draft_model FILE.gguf: got {got}")
    return FoundDraft.of(GgufFile.find(name))
