"""Layers in other forms, CUDA's and offloaded ones, compute what the plain ones do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inference.errors import UnsupportedModel
from inference.model.cache import KeysValues, empty_cache, write_slots
from inference.model.checkpoints.config import ModelConfig, parse_config
from inference.model.decoder import Decoder, layers_on
from inference.model.layer_offload import Copies, OffloadedLayers, load_offloaded
from inference.model.layers import FUSED, WHOLE, Layer, Layers
from tests.support.equality import full_logits
from tests.support.models import TINY, loaded, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused

KERNELS = (F.rms_norm, F.scaled_dot_product_attention)
_VIEWS = ("aten.empty", "aten._unsafe_view", "aten.detach")


def config_of(family: str, layers: int = 2) -> ModelConfig:
    return parse_config(TINY | {"model_type": family, "num_hidden_layers": layers})


def decoder_of(family: str, layers: Layers) -> Decoder:
    torch.manual_seed(1)
    decoder = Decoder(config_of(family), 64, 50, layers)
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
    plain, fused = (decoder_of(family, layers) for layers in (WHOLE, FUSED))
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


class _Kernels(TorchDispatchMode):
    """Counts operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [one.alias_info for one in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        self.count += not (view or str(func).startswith(_VIEWS))
        return func(*args, **(kwargs or {}))


class _Whole(TorchFunctionMode):
    """Counts a function that CUDA has one kernel of as one."""

    def __init__(self, kernels: _Kernels) -> None:
        super().__init__()
        self._kernels = kernels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._kernels.count
        result = func(*args, **(kwargs or {}))
        if func in KERNELS:
            self._kernels.count = before + 1
        return result


def kernels_of(family: str, layers: int, nodes: int, form: Layers) -> int:
    decoder = Decoder(config_of(family, layers), 64, 50, form).bfloat16().to("meta")
    cache = empty_cache(decoder.config, 2, 64, torch.bfloat16, "meta")
    inputs = {name: part.to("meta") for name, part in call(2, nodes, 1, 0, 64).items()}
    slots = torch.zeros((2, nodes), dtype=torch.int32, device="meta")
    with torch.no_grad(), _Kernels() as kernels, _Whole(kernels):
        made = decoder(**inputs, pick=None, cache=cache)
        write_slots(cache, inputs["rows"], slots, made.new)
    return kernels.count


@pytest.mark.parametrize("nodes", [1, 16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_layer_on_cuda_takes_fewer_than_30_kernels(family: str, nodes: int) -> None:
    form = layers_on(torch.device("cuda"))
    fewer, more = (kernels_of(family, layers, nodes, form) for layers in (2, 3))
    assert 20 < more - fewer < 30


@pytest.mark.parametrize("nodes", [1, 16])
def test_the_joint_mask_is_aligned_so_that_no_layer_copies_it(nodes: int) -> None:
    decoder, inputs = decoder_of("llama", FUSED), call(2, nodes, 1, 0, 11)
    masks = list[Tensor]()

    class Noted(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is F.scaled_dot_product_attention:
                masks.append(kwargs["attn_mask"])
            return func(*args, **(kwargs or {}))

    with Noted():
        decoder(**inputs, pick=None, cache=empty_cache(decoder.config, 2, 10, torch.float32))
    assert len({id(mask) for mask in masks}) == 1 < len(masks)
    assert all(stride % 8 == 0 for stride in masks[0].stride()[:-1])
    assert masks[0].dtype == torch.float32


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
