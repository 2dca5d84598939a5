"""Matrices of 8-bit floats: what is rounded, and how far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inference.model.decoder import Decoder
from inference.model.float8 import LARGEST, in_float8, rounded, stored_type, to_float8
from tests.support.equality import full_logits
from tests.support.models import tiny_decoder, write_checkpoint
from tests.support.neuron_artifacts import VOCABULARY, whole


def test_a_level_is_within_a_sixteenth_of_its_number_and_none_is_above_240() -> None:
    """Three bits of mantissa; below 1/64 of the scale's unit numbers are 1/512 apart."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(64, 96, generator=generator) * torch.logspace(-6, 6, 64)[:, None]
    levels, scale = to_float8(matrix)
    assert (levels.dtype, scale.shape, scale.dtype) == (torch.float8_e4m3fn, (64, 1), torch.float32)
    assert levels.float().abs().amax(1).eq(LARGEST).all()
    error = (levels.float() * scale - matrix).abs()
    assert (error <= matrix.abs() / 16 + scale / 1024).all()


def test_an_output_of_zeros_stays_one() -> None:
    levels, scale = to_float8(torch.zeros(2, 4, dtype=torch.bfloat16))
    assert not (levels.float() * scale).any()


def test_matrices_and_head_are_rounded_and_the_rest_is_not() -> None:
    named = dict(tiny_decoder().named_parameters())
    found = rounded(named)
    matrices = {name for name, tensor in named.items() if tensor.dim() == 2} - {
        "model.embed_tokens.weight"
    }
    assert {name for name in found if found[name].dtype == torch.float8_e4m3fn} == matrices
    assert len(found) == len(named) + len(matrices)
    assert all(found[name] is named[name] for name in named.keys() - matrices)
    for name in found:
        expected = torch.float32 if name not in named else torch.bfloat16
        assert stored_type(name, "fp8") == (torch.float8_e4m3fn if name in matrices else expected)


@pytest.mark.parametrize(
    "changes", [{"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}], ids=str
)
def test_states_are_those_of_the_widened_matrices(tmp_path: Path, changes: dict[str, bool]) -> None:
    narrow = in_float8(whole(write_checkpoint(tmp_path / "model", **changes)))
    tensors = dict(narrow.named_parameters())
    widened = {
        name: tensor.float() * tensors[name.removesuffix("weight") + "scale.weight"]
        if tensor.dtype == torch.float8_e4m3fn
        else tensor
        for name, tensor in tensors.items()
        if not name.endswith(".scale.weight")
    }
    wide = Decoder(narrow.config, len(narrow.cos), narrow.vocabulary)
    wide.load_state_dict(widened, assign=True)
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, 12).tolist()
    torch.testing.assert_close(full_logits(narrow, prompt), full_logits(wide, prompt))
