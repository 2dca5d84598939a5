"""Matrices as integers, and substitutes, whose layers are rounded so."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inference.backends.substitute_model import load_substitute, substitute_of
from inference.errors import UnsupportedModel
from inference.model.decoder import Decoder
from inference.model.quantized import (
    GROUP,
    QUANTIZATIONS,
    CutHead,
    Int4Matrix,
    Int4Product,
    Int8Matrix,
    Int8PackedProduct,
    Int8Product,
    Quantization,
    check_device,
    product,
    quantize,
    to_int4,
    to_int8,
)
from tests.support.equality import full_logits
from tests.support.models import loaded, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distance(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Length of the difference, as a part of the exact result's."""
    return float((ours.float() - exact).norm() / exact.norm())


def dequantized(matrix: Int8Matrix | Int4Matrix) -> torch.Tensor:  # [outputs, inputs] float32
    if isinstance(matrix, Int8Matrix):
        return matrix.levels * matrix.scale[:, None]
    grouped = matrix.levels.reshape(*matrix.scale.shape, GROUP) - 8
    wide = grouped * matrix.scale.float()[..., None] + matrix.middle.float()[..., None]
    return wide.flatten(1)


def rounded(decoder: Decoder, weights: Quantization) -> Decoder:
    """A decoder of float32 matrices that have the values of the integers."""
    to = to_int8 if weights == "int8" else to_int4
    if decoder.config.tied:  # the embeddings stay as they are, only the head is rounded
        head = nn.Linear(decoder.config.hidden_size, decoder.vocabulary, bias=False)
        head.weight.data = decoder.head_weight()[: decoder.vocabulary]
        decoder.lm_head = CutHead(head)
    for module in decoder.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = dequantized(to(module.weight.data))
    return decoder


@pytest.mark.parametrize("nodes", [1, 7, 40])
def test_int8_multiplies_by_the_rounded_matrix_in_each_form(nodes: int) -> None:
    """The forms give the same numbers, also where the greatest operands are summed."""
    x, weight, bias = noise(2, nodes, 100), noise(37, 100, seed=1), noise(37, seed=2)
    matrix = to_int8(weight)
    plain = Int8Product(matrix, bias)(x)
    assert distance(plain, F.linear(x, dequantized(matrix), bias)) < 0.02
    assert distance(dequantized(matrix), weight) < 0.02
    for form in ({}, {"halves": True}):  # as this CPU needs it, and as one without VNNI does
        packed = Int8PackedProduct(matrix, bias, **form)
        torch.testing.assert_close(packed(x), plain)
    matrix = to_int8(torch.ones(16, 896) * torch.tensor([1, -1]).repeat(8)[:, None])
    for kind in (Int8PackedProduct, Int8Product):
        for x in (torch.ones(nodes, 896), -torch.ones(nodes, 896)):
            torch.testing.assert_close(kind(matrix, None)(x), x @ dequantized(matrix).t())
    assert not dequantized(to_int8(torch.zeros(2, 4))).any()


@pytest.mark.parametrize("inputs", [32, 96, 128])
@pytest.mark.parametrize("outputs", [16, 37])
def test_int4_multiplies_by_the_rounded_matrix(inputs: int, outputs: int) -> None:
    x, weight, bias = noise(2, 7, inputs), noise(outputs, inputs, seed=1), noise(outputs, seed=2)
    matrix = to_int4(weight)
    ours = Int4Product(matrix, bias)(x)
    assert ours.dtype == x.dtype
    assert distance(ours, F.linear(x, dequantized(matrix), bias)) < 0.01
    assert distance(dequantized(matrix), weight) < 0.12
    equal = torch.cat((torch.full((1, 32), 0.5), torch.zeros(1, 32)))  # within their groups
    torch.testing.assert_close(dequantized(to_int4(equal)), equal, atol=1e-6, rtol=0)


@pytest.mark.parametrize("weights", QUANTIZATIONS)
def test_a_node_does_not_depend_on_its_neighbours_in_a_call(weights: Quantization) -> None:
    x, other = noise(1, 8, 64), noise(1, 8, 64, seed=9) * 100
    other[:, 3] = x[:, 3]
    multiply = product(noise(48, 64, seed=1), None, weights)
    assert torch.equal(multiply(x)[:, 3], multiply(other)[:, 3])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", QUANTIZATIONS)
def test_a_decoder_computes_what_a_rounded_one_does(weights: Quantization, tied: bool) -> None:
    ours, exact = (
        change(tiny_decoder(vocabulary=50, tie_word_embeddings=tied, **SIZES), weights)
        for change in (quantize, rounded)
    )
    assert full_logits(ours, TOKENS).shape == (len(TOKENS), 50)
    assert distance(full_logits(ours, TOKENS), full_logits(exact, TOKENS)) < 0.05


@pytest.mark.parametrize("weights", QUANTIZATIONS)
def test_devices_and_sizes_without_such_products_are_refused(
    weights: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere, gpu = torch.empty(32, 32, device="meta"), torch.device("cuda:0")
    assert_refused(lambda: product(nowhere, None, weights), [weights, "cuda", "meta"])
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert_refused(lambda: product(noise(32, 32), None, weights), [weights, "cpu", "oneDNN"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    check_device(gpu, "int8")
    assert_refused(lambda: check_device(gpu, "int4"), ["compute capability 8.0", "cuda:0"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_device(gpu, weights)
    monkeypatch.undo()
    undivided = ["32", "16", "int8"]
    assert_refused(lambda: quantize(tiny_decoder(), "int4"), undivided, UnsupportedModel)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_type": "qwen2", "tie_word_embeddings": True},  # with biases
        {"model_type": "qwen3", "head_dim": 16},  # with norms of heads
    ],
)
def test_a_checkpoint_rounds_alike_when_it_is_read(fields: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_hidden_layers=3, **SIZES | fields)
    read = partial(
        load_substitute, checkpoint, positions=64, dtype=None, device=torch.device("cpu")
    )
    for vocabulary in (61, 50):
        whole = quantize(loaded(checkpoint, vocabulary=vocabulary), "int4")
        ours, theirs = (full_logits(one, TOKENS) for one in (read(vocabulary=vocabulary), whole))
        assert torch.equal(ours, theirs)


def test_in_one_process_it_shares_embeddings_final_norm_and_head(tmp_path: Path) -> None:
    target = loaded(write_checkpoint(tmp_path, num_hidden_layers=3, **SIZES))
    before = full_logits(target, TOKENS)
    draft = substitute_of(target)
    assert draft.model.embed_tokens is target.model.embed_tokens
    assert draft.model.norm is target.model.norm
    assert draft.lm_head is target.lm_head
    assert torch.equal(full_logits(target, TOKENS), before)
