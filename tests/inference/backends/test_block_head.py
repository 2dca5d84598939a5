"""A DFlash head proposes what its definition says, from both published forms, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.backends import Ranked, Segment
from inference.backends.block_head_model import BlockHeadModel
from inference.backends.target_features import KnownFeatures
from inference.errors import OutriderError
from inference.model.block_head import read_block_head, read_block_head_config, usual_layers
from inference.model.eagle_head import OfTarget
from inference.sampling import SamplingParams
from inference.tree.token_tree import IntArray
from tests.support import block_heads, pairs

TARGET = pairs.decoder(1)
HIDDEN, VOCABULARY = TARGET.config.hidden_size, TARGET.config.vocab_size
LENGTH, ANCHOR, TOP = 320, 7, 5


def model_of(directory: Path, rows: int = 2) -> BlockHeadModel:
    head = read_block_head(directory, OfTarget.of(TARGET), LENGTH + block_heads.BLOCK)
    return BlockHeadModel(head, rows=rows, capacity=LENGTH, max_nodes=LENGTH)


def features_of(tokens: int, seed: int = 0) -> torch.Tensor:
    width = len(block_heads.IDS) * HIDDEN
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def call(
    features: torch.Tensor,
    slots: IntArray,
    *,
    new: int,
    row: int = 0,
    masks: int = block_heads.BLOCK - 2,
    known: int | None = None,
) -> Segment:
    """A call behind tokens with these features, at these slots; the last `new` of them, the root
    and the masks are nodes of the call.
    """
    count, nodes = len(features), new + 1 + masks
    free = np.setdiff1d(np.arange(LENGTH, dtype=np.int32), slots)
    context = np.zeros((1, LENGTH), dtype=np.bool_)
    context[0, slots[: count - new]] = True
    return Segment(
        row=row,
        tokens=np.array([0] * new + [ANCHOR] + [block_heads.MASK] * masks, dtype=np.int32),
        slots=np.concatenate([slots[count - new :], free[: 1 + masks]]).astype(np.int32),
        positions=np.arange(count - new, count + 1 + masks, dtype=np.int32),
        context=context,
        tree_mask=np.tri(nodes, dtype=np.bool_),
        pick=np.arange(new, nodes, dtype=np.int32),
        params=SamplingParams(),
        beside=KnownFeatures(count if known is None else known, lambda at: features[at]),
    )


def in_order(count: int) -> IntArray:
    return np.arange(count, dtype=np.int32)


def scores_of(ranked: Ranked) -> np.ndarray:
    return ranked.scores


def expected(tensors: dict[str, Any], features: torch.Tensor, *, causal: bool = False) -> Any:
    """Log-probabilities of the TOP likeliest tokens at each proposal: [BLOCK - 1, TOP]."""
    states = block_heads.block_states(
        tensors, TARGET.model.embed_tokens.weight, features.double().numpy(), ANCHOR, causal=causal
    )[1:]
    logits = states @ TARGET.head_weight().double().numpy()[: TARGET.vocabulary].T
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.sort(-logits, -1)[:, :TOP]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 17, 300])
def test_a_call_proposes_what_the_definition_says(count: int, causal: bool, tmp_path: Path) -> None:
    tensors, features = block_heads.tensors_of(TARGET.config), features_of(count)
    own = {"mask_token_id": block_heads.MASK, "target_layer_ids": [0], "causal_head": causal}
    raw = block_heads.raw_config(TARGET.config, dflash_config=own)
    model = model_of(block_heads.write_head(tmp_path, raw, tensors))
    [ranked] = model.rank([call(features, in_order(count), new=count)], TOP)
    wanted = expected(tensors, features, causal=causal)
    np.testing.assert_allclose(scores_of(ranked), wanted, atol=1e-4)


def test_keys_may_come_in_parts_at_any_slots_beside_another_row(tmp_path: Path) -> None:
    tensors, features = block_heads.tensors_of(TARGET.config, bias=True), features_of(30)
    raw = block_heads.raw_config(TARGET.config, attention_bias=True)
    model = model_of(block_heads.write_head(tmp_path, raw, tensors))
    slots = np.random.default_rng(1).permutation(40)[:30].astype(np.int32)
    other = call(features_of(5, 1), in_order(5), new=5, row=1)
    model.choose([call(features[:20], slots[:20], new=20, masks=0)])
    model.rank([call(features[:24], slots[:24], new=4), other], TOP)
    [ranked, _] = model.rank([call(features, slots, new=6), other], TOP)
    np.testing.assert_allclose(scores_of(ranked), expected(tensors, features), atol=1e-4)


def test_a_token_is_seen_once_its_feature_is_known(tmp_path: Path) -> None:
    tensors, features = block_heads.tensors_of(TARGET.config), features_of(9)
    raw = block_heads.raw_config(TARGET.config)
    model = model_of(block_heads.write_head(tmp_path, raw, tensors))
    model.rank([call(features, in_order(9), new=9, known=4)], TOP)
    [ranked] = model.rank([call(features, in_order(9), new=0)], TOP)
    np.testing.assert_allclose(scores_of(ranked), expected(tensors, features), atol=1e-4)


def test_a_head_of_speculators_names_tokens_of_its_own(tmp_path: Path) -> None:
    tensors = block_heads.tensors_of(TARGET.config, own=VOCABULARY // 2)
    authors = block_heads.raw_config(TARGET.config)
    del authors["dflash_config"]
    raw = {
        "transformer_layer_config": authors,
        "aux_hidden_state_layer_ids": [0],
        "block_size": block_heads.BLOCK,
        "mask_token_id": block_heads.MASK,
        "draft_vocab_size": VOCABULARY // 2,
        "sample_from_anchor": True,
    }
    model = model_of(block_heads.write_head(tmp_path, raw, tensors))
    assert model.block_masks.most == block_heads.BLOCK - 1
    features = features_of(4)
    segment = call(features, in_order(4), new=4, masks=block_heads.BLOCK - 1)
    [ranked] = model.rank([segment], TOP)
    states = block_heads.block_states(
        tensors, TARGET.model.embed_tokens.weight, features.double().numpy(), ANCHOR, causal=False
    )
    best = (states @ tensors["lm_head.weight"].double().numpy().T).argmax(-1)
    assert ranked.ids[:, 0].tolist() == (2 * best).tolist()


def test_heads_without_ids_read_layers_spread_evenly() -> None:
    assert usual_layers(5, 36) == (2, 10, 18, 26, 34)
    assert usual_layers(5, 32) == (2, 9, 16, 23, 30)
    assert usual_layers(1, 32) == (17,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dflash_config": None}, ["dflash_config", "mask_token_id"]),
        ({"dflash_config": {"target_layer_ids": [0]}}, ["mask_token_id", "integer"]),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1]}}, ["target_layer_ids"]),
        ({"dflash_config": {"mask_token_id": VOCABULARY}}, ["mask_token_id", str(VOCABULARY)]),
        ({"layer_types": ["sliding_attention"] * 2}, ["layer_types", "full attention"]),
        ({"hidden_size": HIDDEN * 2}, ["hidden_size", str(HIDDEN)]),
        ({"vocab_size": VOCABULARY + 1}, ["vocab_size", str(VOCABULARY)]),
        ({"num_hidden_layers": 99}, ["num_hidden_layers", "99", "16"]),
        ({"block_size": 1}, ["block_size", "2"]),
    ],
)
def test_a_head_that_would_be_computed_wrongly_is_refused(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    raw = block_heads.raw_config(TARGET.config, **change)
    block_heads.write_head(tmp_path, raw, block_heads.tensors_of(TARGET.config))
    with pytest.raises(OutriderError) as error:
        read_block_head_config(tmp_path, TARGET.config)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", ["candidate_selector.hidden_projection.weight", "mask_embedding"])
def test_tensors_of_other_heads_are_refused_by_name(name: str, tmp_path: Path) -> None:
    tensors = block_heads.tensors_of(TARGET.config) | {name: torch.zeros(2)}
    block_heads.write_head(tmp_path, block_heads.raw_config(TARGET.config), tensors)
    with pytest.raises(OutriderError, match=name):
        read_block_head(tmp_path, OfTarget.of(TARGET), LENGTH)
