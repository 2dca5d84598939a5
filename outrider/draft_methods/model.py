"""--draft model: a checkpoint or GGUF file of the target's family."""

from __future__ import annotations

from dataclasses import replace

from inference.backends import Model
from inference.errors import InvalidRequest
from outrider.draft_methods import FoundDraft
from outrider.models.loading import Checkpoint, find_named
from outrider.options.groups import DraftModelOptions, QuantizationOptions, backend_of


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """Find the checkpoint or GGUF file of --draft_model or --model, else the embedded draft. Raises
    InvalidRequest for --draft_quantization with any but a checkpoint of Outrider's decoder.
    """
    model = find_named(options.draft_name, "draft", backend_of(options))
    if not isinstance(options, QuantizationOptions):
        return FoundDraft.of(model)
    if isinstance(model, Checkpoint):
        return FoundDraft.of(replace(model, quantization=options.draft_quantization))
    if options.draft_quantization is not None:
        raise InvalidRequest(
            f"--draft_quantization: {model.name} is {model.kind}, which cannot be quantized"
        )
    return FoundDraft.of(model)
