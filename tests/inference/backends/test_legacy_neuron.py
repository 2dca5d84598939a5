"""Targets on transformers-neuronx: chains are exact (the contract's tests), else refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.errors import InvalidRequest, OutriderError
from inference.tree.token_tree import TokenTree
from tests.support.backends import Machine, legacy
from tests.support.models import sequence_after, write_checkpoint


def machine(patch: pytest.MonkeyPatch, folder: Path, **model: Any) -> Machine:
    return Machine(write_checkpoint(folder / "model", **model), folder, folder, patch, ExitStack())


def test_a_branching_tree_and_nodes_elsewhere_in_the_cache_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sequence = sequence_after(model := legacy(machine(monkeypatch, tmp_path)), [5] * 9)
    with pytest.raises(InvalidRequest, match="chains only"):
        sequence.choose(TokenTree(np.array([5, 6, 7]), np.array([-1, 0, 0])))
    segment = sequence.prepare(TokenTree.chain([3, 4]))
    for change in ({"slots": segment.slots + 1}, {"positions": segment.positions + 1}):
        with pytest.raises(InvalidRequest, match="continue the cache"):
            model.choose([segment._replace(**change)])


RENAMED = {"rope_theta": 5e5, "rope_type": "default"}
REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"transformers-neuronx": "0.12.3"}, {}, "transformers-neuronx 0.12.3"),
    ({"transformers": "5.23.0"}, {}, "transformers 5.23.0"),
    ({"instance": "trn2.3xlarge"}, {}, "trn1 or inf2"),
    ({}, {"attention_bias": True}, "biases"),
    ({}, {"rope_theta": None, "rope_parameters": RENAMED}, "reads other"),
]


@pytest.mark.parametrize(("host", "model", "shown"), REFUSED)
def test_what_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: Any, model: Any, shown: str
) -> None:
    with pytest.raises(OutriderError, match=shown):
        legacy(machine(monkeypatch, tmp_path, **model), **host)
