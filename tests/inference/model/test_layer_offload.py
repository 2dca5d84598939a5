"""Layer offload: results of the resident decoder bit for bit, with two layers in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import UnsupportedModel
from inference.model.decoder import Decoder, layers_on
from inference.model.layer_offload import Copies, OffloadedLayers, load_offloaded
from inference.model.layers import Layer
from tests.support.equality import full_logits
from tests.support.models import loaded, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused

LAYERS = 5


def offloaded(directory: Path, dtype: torch.dtype | None = None) -> Decoder:
    return load_offloaded(
        directory,
        positions=64,
        vocabulary=61,
        dtype=dtype,
        device=torch.device("cpu"),
        offload="disk",
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=LAYERS)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_results_are_the_resident_decoders(checkpoint: Path, dtype: torch.dtype | None) -> None:
    """Of two nodes and more: kernels for one row round by where weights lie in memory."""
    layers = layers_on(torch.device("cpu"))
    ours, theirs = offloaded(checkpoint, dtype), loaded(checkpoint, dtype=dtype, layers=layers)
    for tokens in ([5, 17, 3], [60, 2, 9, 11, 40], [7, 7]):
        assert torch.equal(full_logits(ours, tokens), full_logits(theirs, tokens))


def test_a_tied_model_of_another_family_is_computed_too(tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path, model_type="qwen3", head_dim=8, tie_word_embeddings=True, num_hidden_layers=3
    )
    tokens = [5, 17, 3]
    assert torch.equal(
        full_logits(offloaded(directory), tokens), full_logits(loaded(directory), tokens)
    )


def test_two_layers_are_in_memory_however_many_the_model_has(checkpoint: Path) -> None:
    ours, theirs = offloaded(checkpoint), loaded(checkpoint)
    layers: Any = ours.model.layers
    places = [layer.mlp.gate_proj.weight.data_ptr() for _ in range(3) for layer in layers]
    assert len(places) == 3 * LAYERS
    assert len(set(places)) == 2
    layer = _size(next(iter(theirs.model.layers)))
    assert _size(ours) == _size(theirs) - (LAYERS - 2) * layer


class AtOnce(Copies):
    """Copies when they are started."""

    def start(self, copy: Callable[[], None]) -> None:
        copy()

    def finish(self) -> None:
        pass


def numbered(count: int, fetched: Callable[[int], None], copies: Copies) -> OffloadedLayers:
    """Layers whose weights are their number."""

    def fetch(index: int, into: Layer) -> None:
        fetched(index)
        into.mlp.gate_proj.weight.data.fill_(index)

    pair: Any = tuple(tiny_decoder(num_hidden_layers=2).model.layers)
    return OffloadedLayers(pair, count, fetch, copies)


def number_of(layer: Layer) -> int:
    return int(layer.mlp.gate_proj.weight[0, 0])


def test_while_a_layer_computes_the_next_one_is_fetched() -> None:
    """In order, once a forward, and the first again for the next forward."""
    fetched = list[int]()
    layers = numbered(3, fetched.append, AtOnce())
    assert fetched == []
    for _ in range(2):
        assert [(number_of(layer), fetched[-1]) for layer in layers] == [(0, 1), (1, 2), (2, 0)]
    assert fetched == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("copies", [AtOnce, Copies])
def test_a_forward_behind_a_broken_one_begins_anew(copies: Callable[[], Copies]) -> None:
    layers = numbered(4, lambda index: None, copies())
    for broken_at in range(4):
        for index, _ in enumerate(layers):
            if index == broken_at:
                break
        assert [number_of(layer) for layer in layers] == [0, 1, 2, 3]


@pytest.mark.parametrize("copies", [AtOnce, Copies])
def test_a_layer_that_cannot_be_fetched_fails_one_forward(copies: Callable[[], Copies]) -> None:
    failing = [2]

    def fetched(index: int) -> None:
        if index in failing:
            failing.remove(index)
            raise UnsupportedModel("the file is gone")

    layers = numbered(4, fetched, copies())
    with pytest.raises(UnsupportedModel, match="the file is gone"):
        list(layers)
    assert [number_of(layer) for layer in layers] == [0, 1, 2, 3]


def test_files_that_go_away_are_told_of_in_the_forward_that_needs_them(tmp_path: Path) -> None:
    decoder = offloaded(write_checkpoint(tmp_path, num_hidden_layers=LAYERS))
    (tmp_path / "model.safetensors").unlink()
    assert_refused(lambda: full_logits(decoder, [5]), ["model.safetensors"], UnsupportedModel)


def test_a_checkpoint_that_does_not_fit_is_refused_before_a_forward(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, num_hidden_layers=LAYERS)
    path = directory / "model.safetensors"
    tensors, name = load_file(path), "model.layers.3.mlp.up_proj.weight"
    del tensors[name]
    save_file(tensors, path)
    assert_refused(lambda: offloaded(directory), [name], UnsupportedModel)


def _size(module: torch.nn.Module) -> int:
    """Numbers that the module's parameters hold."""
    return sum(parameter.numel() for parameter in module.parameters())
