"""The projection of a PARD-2 checkpoint is read with its published names and shapes; one that does
not fit its draft or its target is refused in one line.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inference.errors import UnsupportedModel
from inference.model.pard import Projection, load_projection, projection_file, takes_states
from tests.support.models import tiny_decoder
from tests.support.pard_files import (
    PUBLISHED_STATES,
    random_weight,
    states_fields,
    write_projection,
)

WEIGHT = random_weight(24, 64)
DRAFT = tiny_decoder(2, hidden_size=24)


def written(directory: Path, **fields: Any) -> Path:
    """The files of a draft's checkpoint that tell of its projection. None removes a field."""
    config = states_fields(PUBLISHED_STATES, 16) | fields
    (directory / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if value is not None}),
        encoding="utf-8",
    )
    write_projection(directory, WEIGHT)
    return directory


def loaded(directory: Path, layers: int = 24, **sizes: int) -> Projection:
    path = projection_file(directory)
    assert path is not None
    return load_projection(path, DRAFT, tiny_decoder(1, num_hidden_layers=layers, **sizes))


def test_states_are_counted_from_the_end_of_the_target(tmp_path: Path) -> None:
    """Its embeddings are number 0: 24 layers have 25 states."""
    projection = loaded(written(tmp_path))
    assert projection.states == (24, 17, 9, 1)
    assert projection.kept == (1, 9, 17, 24)
    assert torch.equal(projection.weight, WEIGHT)
    assert projection.scale == 0.02


def test_the_last_state_of_23_layers_that_is_asked_for_are_the_embeddings(tmp_path: Path) -> None:
    assert loaded(written(tmp_path), layers=23).states == (23, 16, 8, 0)


def test_the_same_tensors_are_read_from_safetensors(tmp_path: Path) -> None:
    written(tmp_path)
    save_file({"target_proj.weight": -WEIGHT}, tmp_path / "warp_model.safetensors")
    assert torch.equal(loaded(tmp_path).weight, -WEIGHT)


def test_the_projection_has_the_precision_of_its_draft(tmp_path: Path) -> None:
    write_projection(written(tmp_path), WEIGHT.bfloat16())
    assert loaded(tmp_path).weight.dtype == torch.float32


def test_config_json_tells_of_a_projection(tmp_path: Path) -> None:
    assert takes_states(written(tmp_path))
    assert not takes_states(written(tmp_path, pard2_target_layers=None))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda at: written(at, pard2_scale=None), "config.json has no pard2_scale, which warp_mo"),
        (lambda at: written(at, pard2_scale="1"), "field pard2_scale is '1': a number is needed"),
        (lambda at: written(at, pard2_target_layers=[]), "a list of one or more states is needed"),
        (lambda at: written(at, pard2_target_layers=[26]), r"\[0\] is 26: -25 to 24, a state of"),
        (lambda at: written(at, pard2_target_layers=[-1]), r"\(24, 16\) is needed for 1 states"),
        (
            lambda at: written(at, pard2_proj_bias=True),
            "tensors target_proj.weight and target_proj.bias are needed, not target_proj.weight",
        ),
        (lambda at: write_projection(written(at), WEIGHT, WEIGHT[0]), "not target_proj.bias, targ"),
        (lambda at: write_projection(written(at), WEIGHT[:8]), r"has shape \(8, 64\): \(24, 64\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, break_it: Callable[[Path], object], message: str
) -> None:
    break_it(tmp_path)
    with pytest.raises(UnsupportedModel, match=message):
        loaded(tmp_path)


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"\(24, 128\) is needed for 4 states of a target"):
        loaded(written(tmp_path), hidden_size=32)


def test_a_target_that_is_too_shallow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel, match=r"\[3\] is -24: -23 to 22, a state of this target of 22 layers"
    ):
        loaded(written(tmp_path), layers=22)


class Marks:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save(
        {"target_proj.weight": Marks(tmp_path / "mark")}, written(tmp_path) / "warp_model.bin"
    )
    with pytest.raises(UnsupportedModel, match="cannot be read as a file of tensors"):
        loaded(tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps(4, 2), b"\x80\x02\x9b\xdd"])
def test_a_file_that_is_none_of_tensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (written(tmp_path) / "warp_model.bin").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"warp_model\.bin cannot be read"):
        loaded(tmp_path)


@pytest.mark.parametrize("held", [[WEIGHT], {1: WEIGHT}, {"target_proj.weight": 1}])
def test_a_file_of_anything_but_named_tensors_is_refused(tmp_path: Path, held: object) -> None:
    torch.save(held, written(tmp_path) / "warp_model.bin")
    with pytest.raises(UnsupportedModel, match="something else than tensors by name"):
        loaded(tmp_path)
