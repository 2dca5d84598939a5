"""A 4-bit copy: what is loaded from it is what its checkpoint rounds to, and a copy that was broken
off is none, until it is made whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inference.backends import Ranked
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.errors import InvalidRequest, UnsupportedModel
from inference.model.checkpoint import Loading, load_decoder
from inference.model.decoder import Decoder
from inference.model.low_bit_files import write_low_bit
from inference.model.substitute import load_substitute, substitute_of
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from tests.support.equality import full_logits
from tests.support.models import write_checkpoint

CPU, TOKENS = torch.device("cpu"), [5, 17, 3, 60]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
FAMILIES = {
    "llama": {},
    "qwen2, with biases, tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3, with norms of heads": {"model_type": "qwen3", "head_dim": 16},
}


def read(directory: Path, *, vocabulary: int = 61) -> Decoder:
    return load_substitute(directory, positions=64, vocabulary=vocabulary, dtype=None, device=CPU)


def ranked(decoder: Decoder) -> Ranked:
    """The likeliest children after each of TOKENS."""
    model = EagerModel(decoder, rows=1, capacity=64, max_nodes=8)
    chain = TokenTree.chain(TOKENS)
    return ModelSequence(model, 0, SamplingParams()).rank(chain, range(len(chain)), 8)


def copied(checkpoint: Path, out: Path) -> Path:
    write_low_bit(checkpoint, "a/model", out, lambda loading: None)
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_computes_what_its_checkpoint_rounds_to(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", **SIZES | FAMILIES[family])
    copy = copied(checkpoint, tmp_path / "copy")
    for vocabulary in (61, 50):
        ours, theirs = (ranked(read(one, vocabulary=vocabulary)) for one in (copy, checkpoint))
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.scores, theirs.scores)


def test_it_is_near_its_checkpoint_and_not_equal_to_it(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, **SIZES)
    whole = load_decoder(checkpoint, positions=64, vocabulary=61, dtype=None, device=CPU)
    ours, theirs = full_logits(substitute_of(whole), TOKENS), full_logits(whole, TOKENS)
    likeness = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
    assert 0.5 < float(likeness.mean()) < 0.9999


def test_in_one_process_it_shares_embeddings_final_norm_and_head(tmp_path: Path) -> None:
    target = load_decoder(
        write_checkpoint(tmp_path, **SIZES), positions=64, vocabulary=61, dtype=None, device=CPU
    )
    before = full_logits(target, TOKENS)
    draft = substitute_of(target)
    assert draft.model.embed_tokens is target.model.embed_tokens
    assert draft.model.norm is target.model.norm
    assert draft.lm_head is target.lm_head
    assert torch.equal(full_logits(target, TOKENS), before)


@pytest.mark.parametrize("layer", range(4))
def test_a_copy_that_was_broken_off_is_none_and_goes_on_where_it_stopped(
    layer: int, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", **SIZES)
    begun, whole = tmp_path / "begun", copied(checkpoint, tmp_path / "whole")

    def stop(loading: Loading) -> None:
        if loading.read == layer:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_low_bit(checkpoint, "a/model", begun, stop)
    made = {path.name: path.stat().st_ino for path in begun.iterdir()}
    assert sorted(made) == [f"layer-{index:05d}.safetensors" for index in range(layer)]
    assert all(_bytes(begun / name) == _bytes(whole / name) for name in made)
    if made:
        with pytest.raises(UnsupportedModel, match="broken off: make it again"):
            read(begun)
    copied(checkpoint, begun)
    assert {path.name for path in begun.iterdir()} == {path.name for path in whole.iterdir()}
    assert all(_bytes(path) == _bytes(whole / path.name) for path in begun.iterdir())
    assert made.items() <= {path.name: path.stat().st_ino for path in begun.iterdir()}.items()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    checkpoint, out = write_checkpoint(tmp_path / "model", **SIZES), tmp_path / "copy"
    out.mkdir()
    (out / ".layer-00001.safetensors.4242.00ff00ff").write_bytes(b"half")
    copied(checkpoint, out)
    assert not list(out.glob(".*"))


def test_another_models_copy_is_left_alone(tmp_path: Path) -> None:
    one, other = (write_checkpoint(tmp_path / str(seed), seed, **SIZES) for seed in (1, 2))
    copy = copied(one, tmp_path / "copy")
    before = {path.name: _bytes(path) for path in copy.iterdir()}
    with pytest.raises(InvalidRequest, match="holds the 4-bit copy of a/model"):
        copied(other, copy)
    with pytest.raises(InvalidRequest, match="holds a checkpoint"):
        copied(one, other)
    assert {path.name: _bytes(path) for path in copy.iterdir()} == before


def test_files_begun_of_another_checkpoint_are_made_again(tmp_path: Path) -> None:
    one, other = (write_checkpoint(tmp_path / str(seed), seed, **SIZES) for seed in (1, 2))
    copy = copied(one, tmp_path / "copy")
    (copy / "substitute.json").unlink()
    copied(other, copy)
    assert np.array_equal(ranked(read(copy)).scores, ranked(read(other)).scores)


def test_a_model_that_cannot_be_rounded_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")  # inputs of 16 and 24
    with pytest.raises(UnsupportedModel, match="a multiple of 32"):
        copied(checkpoint, tmp_path / "copy")
    assert not (tmp_path / "copy").exists() or not list((tmp_path / "copy").iterdir())


def test_a_copy_that_lacks_a_file_or_was_changed_is_refused(tmp_path: Path) -> None:
    copy = copied(write_checkpoint(tmp_path / "model", **SIZES), tmp_path / "copy")
    config = copy / "config.json"
    good = config.read_text()
    config.write_text(good.replace('"intermediate_size": 96', '"intermediate_size": 128'))
    with pytest.raises(UnsupportedModel, match=r"gate_proj has shape \(96, 64\)"):
        read(copy)
    config.write_text(good)
    (copy / "layer-00002.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"layer-00002.safetensors is missing"):
        read(copy)


def test_a_copy_is_no_target(tmp_path: Path) -> None:
    copy = copied(write_checkpoint(tmp_path / "model", **SIZES), tmp_path / "copy")
    with pytest.raises(UnsupportedModel, match="drafts only: give it to --draft substitute"):
        load_decoder(copy, positions=64, vocabulary=61, dtype=None, device=CPU)


def _bytes(path: Path) -> bytes:
    return path.read_bytes()
