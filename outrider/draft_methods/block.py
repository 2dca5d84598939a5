"""--draft block: a checkpoint that names several tokens in one call, by masks (PARD's format).

config.json names the mask's id, `pard_token`, as AMD publishes PARD and PARD-2. `para_num`, how
many tokens a call was trained to name, is a setting of PARD's training that published files leave
out. A PARD-2 checkpoint drafts here without its target's states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.backends import Masks, Model, Ranked, Segment
from inference.errors import UnsupportedModel
from inference.json_file import read_json
from inference.tree import IntArray
from outrider.models.loading import LoadedModel, OfCheckpoint, find_checkpoint
from outrider.models.sequence_length import Capacity
from outrider.options.groups import DeviceOptions, DraftModelOptions

PUBLISHED_POSITIONS = 8
"""Tokens that a call names where config.json does not say: what PARD's own settings train."""

MOST_POSITIONS = 16


class MaskedModel:
    """A BlockModel: a model that computes the mask like other tokens, and which token that is."""

    def __init__(self, model: LoadedModel, masks: Masks) -> None:
        self.rows, self.capacity = model.rows, model.capacity
        self.max_nodes, self.copies_rows = model.max_nodes, model.copies_rows
        self.masks = masks
        self._model = model

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def dtype(self) -> torch.dtype | str:
        return self._model.dtype

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._model.rank(segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)


@dataclass(frozen=True)
class BlockCheckpoint(OfCheckpoint):
    """A FoundModel with masks."""

    masks: Masks

    def load(self, options: DeviceOptions, capacity: Capacity) -> MaskedModel:
        model = self.checkpoint.load(options, capacity)
        return MaskedModel(model, self.masks)


def find(options: DraftModelOptions, target: Model | None) -> BlockCheckpoint:
    """The checkpoint of --draft_model or --model, or the embedded one. Raises UnsupportedModel for
    one that names no mask.
    """
    checkpoint = find_checkpoint(options.draft_name, "block_draft")
    return BlockCheckpoint(
        checkpoint, read_masks(checkpoint.directory, checkpoint.config.vocab_size)
    )


def read_masks(directory: Path, vocabulary: int) -> Masks:
    """Read the mask that a checkpoint's config.json names. Raises UnsupportedModel.

    vocabulary: ids that the model has
    """
    raw = read_json(directory / "config.json", UnsupportedModel)
    token, trained = raw.field("pard_token"), raw.field("para_num")
    if token.absent:
        raise UnsupportedModel(
            f"{directory}: config.json has no pard_token: --draft block needs a checkpoint that "
            "was trained with a mask (PARD); --draft model takes any other"
        )
    positions = PUBLISHED_POSITIONS if trained.absent else trained.integer(2, MOST_POSITIONS)
    return Masks(token.integer(0, vocabulary - 1), positions - 1)
