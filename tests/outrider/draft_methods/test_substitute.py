"""--draft substitute: a target's own layers draft beside it and keep keys of candidates only."""

from __future__ import annotations

from typing import Any

import pytest

from inference.backends.substitute_model import SharedCacheModel
from inference.times_file import PROFILES
from outrider.draft_methods import find_draft
from outrider.models.found_model import Capacity
from outrider.models.loading import find_target
from outrider.options.roles import FusedTargetRole
from tests.support.commands import Run


def test_beside_its_target_it_keeps_keys_of_candidates_only() -> None:
    options = FusedTargetRole(draft="substitute", batch=2, sequence_length=256)
    target: Any = find_target(options).load(options, Capacity(2, 256, 64, 64))
    found = find_draft(options, target)
    draft = found.load(options, Capacity(rows=2, sequence_length=256, spare=40, max_nodes=32)).model
    assert isinstance(draft, SharedCacheModel)
    assert draft.target_cache is target.cache
    assert draft.cache.keys[0].shape == (2, 40 + 1, target.cache.keys[0].shape[2])
    assert draft.decoder.model.embed_tokens is target.decoder.model.embed_tokens


PROFILE = next(PROFILES.glob("*.json")).stem
REFUSED: list[tuple[str, ...]] = [
    (f"fused_target --draft substitute --emulate {PROFILE} --port 0", "by --draft_model"),
    ("target --layer_offload host --device cpu", "--layer_offload disk"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused[0])
def test_layers_that_are_not_there_and_memory_that_is_the_same_are_refused(
    refused: tuple[str, ...], run: Run
) -> None:
    words, *shown = refused
    run(*words.split()).assert_failed(*shown)
