"""The layers of CUDA, on a CPU. Which functions are one kernel is from the documentation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inference.model.cache import KeysValues, empty_cache, write_slots
from inference.model.checkpoints.config import ModelConfig, parse_config
from inference.model.decoder import Decoder, layers_on
from inference.model.layers import FUSED, WHOLE, Layers
from tests.support.models import TINY

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
