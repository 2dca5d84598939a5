"""--draft block: a checkpoint that names several tokens in one call, by masks (PARD's format).

config.json names the mask's id, `pard_token`, as AMD publishes PARD and PARD-2. `para_num`, how
many tokens a call was trained to name, is a setting of PARD's training that published files leave
out. A PARD-2 checkpoint drafts here without its target's states.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from inference.backends import Masks, Model
from inference.drafters.draft import Draft
from inference.errors import UnsupportedModel
from inference.json_file import read_json
from outrider.draft_methods import FoundDraft
from outrider.models.loading import find_checkpoint
from outrider.options.groups import DraftModelOptions

PUBLISHED_POSITIONS = 8
"""Tokens that a call names where config.json does not say: what PARD's own settings train."""

MOST_POSITIONS = 16


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """The checkpoint of --draft_model or --model, or the embedded one. Raises UnsupportedModel for
    one that names no mask.
    """
    checkpoint = find_checkpoint(options.draft_name, "block_draft")
    masks = read_masks(checkpoint.directory, checkpoint.config.vocab_size)
    return FoundDraft.of(checkpoint, partial(Draft, masks=masks))


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
