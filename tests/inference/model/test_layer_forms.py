"""Layers in other forms, CUDA's and offloaded ones, compute what the plain ones do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inference.errors import UnsupportedModel
from inference.model.cache import KeysValues, empty_cache, write_slots
from inference.model.checkpoints.config import parse_config
from inference.model.decoder import Decoder, layers_on
from inference.model.layer_offload import Copies, OffloadedLayers, load_offloaded
from inference.model.layers import WHOLE, Layer, Layers
from tests.support.equality import full_logits
from tests.support.models import TINY, loaded, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused

CUDA = layers_on(torch.device("cuda"))


def decoder_of(family: str, layers: Layers) -> Decoder:
    torch.manual_seed(1)
    decoder = Decoder(parse_config(TINY | {"model_type": family}), 64, 50, layers)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return decoder.requires_grad_(False)


def call(rows: int, nodes: int, contexts: int, earlier: int, slots: int) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(2)
    above = torch.rand((rows, nodes, earlier + nodes), generator=noise) < 0.5
    own = torch.eye(nodes).bool().expand(rows, -1, -1)
    return {
        "tokens": torch.randint(50, (rows, nodes), generator=noise, dtype=torch.int32),
        "rows": torch.arange(rows, dtype=torch.int32),
        "positions": torch.randint(64, (rows, nodes), generator=noise, dtype=torch.int32),
        "context_mask": (torch.rand((rows, contexts, slots), generator=noise) < 0.7).int(),
        "tree_mask": torch.cat((above[..., :earlier], above[..., earlier:] | own), -1).int(),
    }


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("nodes", "contexts", "earlier"), [(1, 1, 0), (5, 1, 0), (4, 4, 0), (3, 1, 2)]
)
def test_they_compute_what_the_others_do(
    family: str, nodes: int, contexts: int, earlier: int
) -> None:
    """Also over slots that each node sees for itself, and beside nodes outside the cache."""
    plain, fused = (decoder_of(family, layers) for layers in (WHOLE, CUDA))
    config, noise = plain.config, torch.Generator().manual_seed(3)
    width = config.kv_heads * config.head_dim

    def states(*shape: int) -> KeysValues:
        count = range(2 * config.layers)
        return KeysValues.of(torch.randn((*shape, width), generator=noise) for _ in count)

    cache, near = states(2, 11), states(2, earlier) if earlier else None
    inputs = call(2, nodes, contexts, earlier, 11)
    made, expected = (
        decoder(**inputs, pick=None, cache=cache, earlier=near) for decoder in (fused, plain)
    )
    assert torch.allclose(made.states, expected.states, atol=1e-4)
    for ours, theirs in zip(made.new.tensors, expected.new.tensors, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


class Kernels(TorchDispatchMode):
    """Counts operations that are no views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [result.alias_info for result in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        ignored = ("aten.empty", "aten._unsafe_view", "aten.detach")
        self.count += not (view or str(func).startswith(ignored))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("nodes", [1, 16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_layer_on_cuda_takes_at_most_28_kernels_and_copies_no_mask(
    family: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = list[Tensor]()

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        masks.append(attn_mask)
        return q.clone()  # one kernel, as on CUDA

    monkeypatch.setattr(F, "rms_norm", lambda x, *_: x.clone())
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    config, counts = parse_config(TINY | {"model_type": family}), list[int]()
    for layers in (2, 3):
        masks.clear()
        decoder = Decoder(replace(config, layers=layers), 64, 50, CUDA).bfloat16().to("meta")
        cache = empty_cache(decoder.config, 2, 60, torch.bfloat16, "meta")
        inputs = {name: part.to("meta") for name, part in call(2, nodes, 1, 0, 61).items()}
        slots = torch.zeros((2, nodes), dtype=torch.int32, device="meta")
        with torch.no_grad(), Kernels() as kernels:
            made = decoder(**inputs, pick=None, cache=cache)
            write_slots(cache, inputs["rows"], slots, made.new)
        counts.append(kernels.count)
        assert [mask is masks[0] for mask in masks] == [True] * layers
        assert all(stride % 8 == 0 for stride in masks[0].stride()[:-1])  # aligned
        assert masks[0].dtype == torch.bfloat16
    assert 20 < counts[1] - counts[0] <= 28


def offloaded(directory: Path, dtype: torch.dtype | None = None) -> Decoder:
    return load_offloaded(
        directory,
        positions=64,
        vocabulary=61,
        dtype=dtype,
        device=torch.device("cpu"),
        offload="disk",
    )


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fields", [{}, {"model_type": "qwen3", "tie_word_embeddings": True}])
def test_results_are_the_resident_decoders(
    tmp_path: Path, fields: dict[str, Any], dtype: torch.dtype | None
) -> None:
    """Of two nodes and more: kernels for one row round by where weights lie in memory."""
    checkpoint = write_checkpoint(tmp_path, num_hidden_layers=3, **fields)
    layers = layers_on(torch.device("cpu"))
    ours, theirs = offloaded(checkpoint, dtype), loaded(checkpoint, dtype=dtype, layers=layers)
    for tokens in ([5, 17, 3], [60, 2, 9, 11, 40], [7, 7]):
        assert torch.equal(full_logits(ours, tokens), full_logits(theirs, tokens))


def test_two_layers_are_in_memory_however_many_the_model_has(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_hidden_layers=5)
    ours, theirs = offloaded(checkpoint), loaded(checkpoint)
    layers: Any = ours.model.layers
    places = [layer.mlp.gate_proj.weight.data_ptr() for _ in range(3) for layer in layers]
    assert len(places) == 3 * 5
    assert len(set(places)) == 2
    layer = _size(next(iter(theirs.model.layers)))
    assert _size(ours) == _size(theirs) - (5 - 2) * layer


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
    failing = [2]

    def fetched(index: int) -> None:
        if index in failing:
            failing.remove(index)
            raise UnsupportedModel("the file is gone")

    layers = numbered(4, fetched, copies())
    with pytest.raises(UnsupportedModel, match="the file is gone"):
        list(layers)
    for broken_at in range(4):
        assert [number_of(layer) for layer in layers] == [0, 1, 2, 3]
        for index, _ in enumerate(layers):
            if index == broken_at:
                break
    assert [number_of(layer) for layer in layers] == [0, 1, 2, 3]


def test_files_that_are_gone_or_do_not_fit_are_named(tmp_path: Path) -> None:
    decoder = offloaded(write_checkpoint(tmp_path))
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    path.unlink()
    assert_refused(lambda: full_logits(decoder, [5]), ["model.safetensors"], UnsupportedModel)
    del tensors[name]
    save_file(tensors, path)
    assert_refused(lambda: offloaded(tmp_path), [name], UnsupportedModel)


def _size(module: torch.nn.Module) -> int:
    """Numbers that the module's parameters hold."""
    return sum(parameter.numel() for parameter in module.parameters())
