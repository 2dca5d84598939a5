"""--draft eagle: an EAGLE-3 head, from its published checkpoint, beside its target."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from inference.backends.eagle_model import EagleModel
from inference.model.eagle_head import OfTarget, read_head, read_head_config
from outrider.draft_methods.heads import HeadMethod, LoadedHead, find_head
from outrider.models.capacity import Capacity


def _load(directory: Path, target: OfTarget, capacity: Capacity) -> LoadedHead:
    head = read_head(directory, target, capacity.sequence_length)
    rows, slots, nodes = capacity.rows, capacity.slots, capacity.max_nodes
    model = EagleModel(head, rows=rows, capacity=slots, max_nodes=nodes)
    return LoadedHead(model, head.config.kept, sum(part.numel() for part in head.parameters()))


EAGLE = HeadMethod(
    "eagle",
    lambda directory, target: read_head_config(directory, target).kept,
    _load,
    lambda model: None,
)
find = partial(find_head, EAGLE)
