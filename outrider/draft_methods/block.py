"""--draft block: a checkpoint that names several tokens in one call, by masks (PARD's format).

config.json names the mask's id, `pard_token`, as AMD publishes PARD and PARD-2. `para_num`, how
many tokens a call was trained to name, is a setting of PARD's training that published files leave
out. A PARD-2 checkpoint is trained for both of its modes: beside a target that keeps its states it
reads them, elsewhere it drafts without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.backends import Masks, Model, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.pard import DependentModel
from inference.backends.timed import feature_model
from inference.command import say
from inference.errors import UnsupportedModel
from inference.json_file import read_json
from inference.model.checkpoint import load_decoder
from inference.model.hub import find_model
from inference.model.pard import FILES, load_projection, projection_file, takes_states
from inference.tree import IntArray
from outrider.models import LoadedModel, OfCheckpoint, decoder_on_device, find_checkpoint
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

    def load(
        self,
        options: DeviceOptions,
        *,
        rows: int,
        sequence_length: int,
        spare: int,
        max_nodes: int,
    ) -> MaskedModel:
        model = self.checkpoint.load(
            options,
            rows=rows,
            sequence_length=sequence_length,
            spare=spare,
            max_nodes=max_nodes,
        )
        return MaskedModel(model, self.masks)


@dataclass(frozen=True)
class DependentCheckpoint(OfCheckpoint):
    """A FoundModel with masks that reads the states of `target`.

    projection: the file that says how
    """

    masks: Masks
    projection: Path
    target: EagerModel

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}-states"

    def load(
        self,
        options: DeviceOptions,
        *,
        rows: int,
        sequence_length: int,
        spare: int,
        max_nodes: int,
    ) -> DependentModel:
        decoder = decoder_on_device(options, self.checkpoint, load_decoder, sequence_length)
        projection = load_projection(self.projection, decoder, self.target.decoder)
        states = ", ".join(map(str, projection.states))
        say(f"{self.name}: reads states {states} of the {projection.depth} layers of its target")
        self.target.keep_features(projection.kept)
        return DependentModel(
            decoder,
            projection,
            self.masks,
            rows=rows,
            capacity=sequence_length + spare,
            max_nodes=max_nodes,
        )


def find(options: DraftModelOptions, target: Model | None) -> BlockCheckpoint | DependentCheckpoint:
    """The checkpoint of --draft_model or --model, or the embedded one. Raises UnsupportedModel for
    one that names no mask.
    """
    checkpoint = find_checkpoint(options.draft_name, "block_draft")
    masks = read_masks(checkpoint.directory, checkpoint.config.vocab_size)
    alone = BlockCheckpoint(checkpoint, masks)
    if not takes_states(checkpoint.directory):
        return alone
    keeper = None if target is None else feature_model(target)
    if not isinstance(keeper, EagerModel):
        say(f"{checkpoint.name}: drafts without its target's states, which are not kept here")
        return alone
    projection = _find_projection(options.draft_name, checkpoint.directory)
    if projection is None:
        say(f"{checkpoint.name}: drafts without its target's states: it has no {FILES[-1]}")
        return alone
    return DependentCheckpoint(checkpoint, masks, projection, keeper)


def _find_projection(name: str | None, directory: Path) -> Path | None:
    """The file with a draft's projection, from the hub if the draft is from there."""
    return projection_file(directory if name is None else find_model(name, also=FILES))


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
