"""--draft dflash: a DFlash head, from its published checkpoint, beside its target."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from inference.backends.block_head_model import BlockHeadModel
from inference.model.block_head import read_block_head, read_block_head_config
from inference.model.eagle_head import OfTarget
from outrider.draft_methods.heads import HeadMethod, LoadedHead, find_head
from outrider.models.capacity import Capacity


def _load(directory: Path, target: OfTarget, capacity: Capacity) -> LoadedHead:
    head = read_block_head(directory, target, capacity.sequence_length)
    rows, slots, nodes = capacity.rows, capacity.slots, capacity.max_nodes
    model = BlockHeadModel(head, rows=rows, capacity=slots, max_nodes=nodes)
    return LoadedHead(model, head.config.kept, sum(part.numel() for part in head.parameters()))


DFLASH = HeadMethod(
    "dflash",
    lambda directory, target: read_block_head_config(directory, target).kept,
    _load,
    lambda model: cast(BlockHeadModel, model).block_masks,
)
find = partial(find_head, DFLASH)
