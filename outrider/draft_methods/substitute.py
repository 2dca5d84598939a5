"""--draft substitute: the target's own layers with 4-bit weights (docs/drafts.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.backends.substitute_model import (
    SharedCacheModel,
    SharedSequence,
    load_substitute,
    substitute_of,
)
from inference.drafters.growing_proposer import Draft
from inference.errors import InvalidRequest
from inference.loop.draft_tuning import TUNING
from inference.model.decoder import Decoder
from outrider.draft_methods import FoundDraft
from outrider.models.found_model import Capacity
from outrider.models.loading import Checkpoint, find_checkpoint
from outrider.options.groups import DeviceOptions, DraftModelOptions, TargetModelOptions


@dataclass(frozen=True)
class Substitute(Checkpoint):
    """A substitute on its own, the same as --draft model with --draft_quantization int4."""

    def load_decoder(self, *, device: torch.device, **sizes: Any) -> Decoder:
        return load_substitute(self.directory, device=device, **sizes)


@dataclass(frozen=True, kw_only=True)
class BesideItsTarget(Checkpoint):
    """The substitute of a target in this process: shares its cache and unquantized weights."""

    target: EagerModel

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}-layers"

    def load(self, options: DeviceOptions, capacity: Capacity) -> EagerModel:
        draft = substitute_of(self.target.decoder)
        return SharedCacheModel(
            draft, self.target, slots=capacity.spare, max_nodes=capacity.max_nodes
        )


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """Find the substitute of --draft_model or --model. In the target's process, without
    --draft_model, it is the substitute of that target.
    """
    if target is None or options.draft_model is not None:
        return FoundDraft.of(Substitute(**_rounded(options.draft_name)))
    if not isinstance(target, EagerModel):
        raise InvalidRequest(
            "--draft substitute rounds the layers of a target on cpu or cuda in this process: with "
            "--artifact or --emulate name a checkpoint by --draft_model"
        )
    assert isinstance(options, TargetModelOptions)
    draft = BesideItsTarget(**_rounded(options.target_name), target=target)
    return FoundDraft.of(draft, partial(Draft, sequence=partial(SharedSequence, TUNING.room)))


def _rounded(name: str | None) -> dict[str, Any]:
    """Return the fields of the checkpoint of this name, with 4-bit weights."""
    checkpoint = find_checkpoint(name, "target")
    return vars(replace(checkpoint, name=f"{checkpoint.name}, 4-bit", quantization="int4"))
