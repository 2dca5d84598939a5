"""EAGLE-3 heads are read as they are published; one that does not fit the target is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import UnsupportedModel
from inference.model.eagle_head import OfTarget, read_head, read_head_config
from tests.support import heads, pairs
from tests.support.refusals import assert_refused

TARGET = pairs.decoder(1)
TENSORS = heads.tensors_of(TARGET.config)


def written(
    directory: Path, tensors: dict[str, Any] = TENSORS, spelt: str = "midlayer.", **overrides: Any
) -> Path:
    return heads.write_head(directory, heads.raw_config(TARGET.config, **overrides), tensors, spelt)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("spelt", ["midlayer.", "layers.0.", "model.layers.0."])
def test_layers_are_read_as_each_project_spells_them(
    tmp_path: Path, spelt: str, depth: int
) -> None:
    tensors = heads.tensors_of(TARGET.config, depth=depth)
    written(tmp_path, tensors, spelt, num_hidden_layers=depth)
    head = read_head(tmp_path, OfTarget.of(TARGET), 64)
    assert len(head.layers) == depth - 1
    for name, parameter in head.named_parameters():
        wanted = tensors.get(name, TARGET.model.embed_tokens.weight)
        assert torch.equal(parameter, wanted), name


def test_a_head_has_its_own_tokens_and_embeddings_or_the_targets(tmp_path: Path) -> None:
    head = read_head(written(tmp_path), OfTarget.of(TARGET), 64)
    logits = head.logits(torch.randn(1, 2, 32))
    named = (logits[0, 0] > -1e29).nonzero()[:, 0].tolist()
    assert logits.shape == (1, 2, pairs.VOCABULARY)
    assert named == TENSORS["t2d"][: pairs.VOCABULARY].nonzero()[:, 0].tolist()
    size, own = TARGET.config.vocab_size, torch.randn(TARGET.model.embed_tokens.weight.shape)
    tensors = heads.tensors_of(TARGET.config, named=size) | {"embed_tokens.weight": own}
    del tensors["d2t"], tensors["t2d"]
    head = read_head(written(tmp_path, tensors, draft_vocab_size=size), OfTarget.of(TARGET), 64)
    assert head.ids.tolist() == list(range(size))
    assert torch.equal(head.embed_tokens.weight, own)


IDS = "eagle_aux_hidden_state_layer_ids"
DEEP = pairs.config(layers=8)


def test_features_are_of_the_layers_that_the_head_was_trained_on(tmp_path: Path) -> None:
    raw = heads.raw_config(DEEP)
    del raw[IDS]
    by_input, by_output = {IDS: [1, 4, 8]}, {"eagle_config": {IDS: [1, 3, 7]}}
    for fields, kept in (({}, (2, 4, 5)), (by_input, (1, 4, 8)), (by_output, (2, 4, 8))):
        heads.write_head(tmp_path, raw | fields, {})
        assert read_head_config(tmp_path, DEEP).feature_layers == kept


def test_a_config_with_the_layer_in_a_field_of_its_own_is_read(tmp_path: Path) -> None:
    flat = heads.raw_config(TARGET.config)
    outer = {name: flat.pop(name) for name in ("draft_vocab_size", IDS)}
    nested = {"transformer_layer_config": flat, "norm_before_residual": True, **outer}
    config = read_head_config(heads.write_head(tmp_path, nested, {}), TARGET.config)
    assert config.norms_residual
    assert config.layer.hidden_size == TARGET.config.hidden_size
    assert config.draft_vocabulary == heads.DRAFT_VOCABULARY


@pytest.mark.parametrize(
    ("fields", "change", "says"),
    [
        ({"draft_vocab_size": None}, {}, "draft_vocab_size"),
        ({"draft_vocab_size": 301}, {}, "1 300"),
        ({"vocab_size": 299}, {}, "299 300"),
        ({"hidden_size": 64}, {}, "64 32"),
        ({"target_hidden_size": 48}, {}, "48 32"),
        ({"num_hidden_layers": 2}, {}, "layers.1."),
        ({"num_hidden_layers": 10**9}, {}, "16 1000000000"),
        ({"norm_before_fc": True}, {}, "norm_before_fc"),
        ({IDS: [0, 1, 3]}, {}, "0 2"),
        ({IDS: [0, 2, 1]}, {}, "ascending"),
        ({IDS: None}, {}, "7"),
        ({"eagle_config": {IDS: [0, 1, 2]}, IDS: None}, {}, "0 1"),
        ({}, {"fc.weight": torch.zeros(32, 64)}, "fc.weight shape"),
        ({}, {"midlayer.self_attn.q_proj.weight": torch.zeros(32, 32)}, "q_proj.weight shape"),
        ({}, {"norm.weight": None}, "norm.weight EAGLE-3"),
        ({}, {"midlayer.extra.weight": torch.zeros(1)}, "midlayer.extra.weight"),
        ({}, {"layers.1.mlp.up_proj.weight": torch.zeros(48, 32)}, "layers.1."),
        ({}, {"mask_hidden": torch.zeros(1, 1, 96)}, "mask_hidden EAGLE-3"),
        ({}, {"d2t": None}, "d2t"),
        ({}, {"d2t": torch.full((40,), 300)}, "40 299"),
        ({}, {"d2t": -torch.arange(40)}, "40 299"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, Any], change: dict[str, torch.Tensor | None], says: str
) -> None:
    tensors = {name: one for name, one in {**TENSORS, **change}.items() if one is not None}
    read = partial(read_head, written(tmp_path, tensors, **fields), OfTarget.of(TARGET), 64)
    assert_refused(read, says.split(), UnsupportedModel)
