"""The stand-in for AWS's packages fails where the real ones would: otherwise tests against it
would prove nothing.
"""

from __future__ import annotations

import threading
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inference.backends.neuron_sdk import Sdk, load_build_units, load_sdk
from tests.support.fake_neuron import Neuron

FLAGS = "--target trn1 --lnc=1 --auto-cast=none -O2"
INPUT = {"x": torch.ones(2, dtype=torch.int32)}


class Counter(nn.Module):
    """Adds its input to its state, as state is meant to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("state", torch.zeros(2))
        self.register_buffer("table", torch.tensor([3, 4], dtype=torch.int32))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.state = self.state + x * self.weight
        return self.state + self.table


class InPlace(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.state.add_(x)
        return self.state + 0


class Grows(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.state = torch.cat((self.state, self.state))
        return x


class Star(Counter):
    def forward(self, *x: Tensor) -> Tensor:  # type: ignore[override]
        return x[0]


class Default(Counter):
    def forward(self, x: Tensor, y: int = 3) -> Tensor:  # type: ignore[override]
        return x


class Sorts(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return torch.sort(x)[0]


class Wide(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.to(torch.int64)


class Infinite(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.to(torch.float32).masked_fill(x > 0, float("-inf"))


class Decides(Counter):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x if x.sum() > 0 else -x


def traced(sdk: Sdk, module: nn.Module, *inputs: dict[str, Any], flags: str = FLAGS) -> Any:
    """An NxDModel of a module's graphs, which are called 0, 1, ..."""
    units, model = load_build_units(), sdk.nxd_model(world_size=1)
    with (
        sdk.parallel_state(world_size=1, tensor_model_parallel_size=1, lnc_size=1),
        TemporaryDirectory() as work,
    ):
        for number, example in enumerate(inputs or (INPUT,)):
            trace = units.trace(model=module, kwargs=example)
            made = units.compile(
                hlo_module=trace.hlo,
                metaneff=trace.metaneff,
                compiler_workdir=work,
                compiler_args=flags,
                key=str(number),
            )
            model.add(key=str(number), trace_artifacts=trace, compilation_artifacts=made)
    return model


def weights(module: nn.Module) -> list[dict[str, Tensor]]:
    return [{name: tensor for name, tensor in module.state_dict().items() if name != "state"}]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (InPlace, "in-place write to state"),
        (Grows, "changed its shape"),
        (Star, "must name its parameters"),
        (Default, "only None may be a default"),
        (Sorts, "sort.* is not supported"),
        (Wide, "int32 and float32"),
        (Infinite, "Numerical Error"),
        (Decides, "_local_scalar_dense.* is not supported"),
    ],
)
def test_a_graph_that_breaks_a_rule_is_not_traced(
    neuron: Neuron, module: type[Counter], words: str
) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError), match=words):
        traced(load_sdk(), module())


@pytest.mark.parametrize(
    "example", [{"x": torch.ones(2, dtype=torch.int64)}, {"x": 3}, {"z": torch.ones(2)}, {}]
)
def test_inputs_are_named_int32_or_float32_tensors(neuron: Neuron, example: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, AssertionError)):
        traced(load_sdk(), Counter(), example)


def test_state_is_kept_between_calls_and_shared_by_graphs(neuron: Neuron) -> None:
    model = traced(load_sdk(), Counter(), INPUT, INPUT | {"y": torch.ones(3)})
    model.set_weights(weights(Counter()))
    model.to_neuron()
    assert model(**INPUT, model_name="0").tolist() == [4, 5]
    assert model(**INPUT, y=torch.ones(3), model_name="1").tolist() == [5, 6]
    assert model.read_from_neuron_buffer("state", 0).tolist() == [2, 2]


def test_weights_come_first_then_the_device_then_calls(neuron: Neuron) -> None:
    model = traced(load_sdk(), Counter())
    with pytest.raises(RuntimeError, match="set_weights"):
        model(**INPUT, model_name="0")
    with pytest.raises(RuntimeError, match="before set_weights"):
        model.to_neuron()
    model.set_weights(weights(Counter()))
    model.to_neuron()
    with pytest.raises(ValueError, match="already loaded"):
        model.set_weights(weights(Counter()))


@pytest.mark.parametrize("name", ["weight", "table"])
def test_every_weight_and_constant_is_needed_in_its_type(neuron: Neuron, name: str) -> None:
    model = traced(load_sdk(), Counter())
    shard = weights(Counter())[0]
    with pytest.raises(RuntimeError, match=name):
        model.set_weights([shard | {name: shard[name].to(torch.bfloat16)}])
    with pytest.raises(RuntimeError, match=name):
        model.set_weights([{other: tensor for other, tensor in shard.items() if other != name}])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"x": torch.ones(3, dtype=torch.int32)}, KeyError),
        ({"w": torch.ones(2, dtype=torch.int32)}, KeyError),
        ({"x": torch.ones(2, dtype=torch.int64)}, TypeError),
        (INPUT | {"model_name": "other"}, AssertionError),
    ],
)
def test_a_call_is_routed_by_exact_names_and_shapes(
    neuron: Neuron, call: dict[str, Any], error: type[Exception]
) -> None:
    model = traced(load_sdk(), Counter())
    model.set_weights(weights(Counter()))
    model.to_neuron()
    with pytest.raises(error):
        model(**({"model_name": "0"} | call))


def test_a_second_call_while_one_runs_is_an_error(neuron: Neuron) -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(Counter):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            if waiting:
                entered.set()
                go.wait(10)
            return x + 0

    waiting: list[bool] = []
    model = traced(load_sdk(), Slow())
    model.set_weights([Slow().state_dict()])
    model.to_neuron()
    waiting.append(True)
    first = threading.Thread(target=lambda: model(**INPUT, model_name="0"))
    first.start()
    assert entered.wait(10)
    with pytest.raises(RuntimeError, match="in flight"):
        model(**INPUT, model_name="0")
    go.set()
    first.join()


@pytest.mark.parametrize(
    "flags",
    ["--target trn1 --lnc=1 -O2", "--target trn1 --auto-cast=none", FLAGS + " --unheard-of"],
)
def test_flags_that_are_missing_or_unknown_fail_the_compiler(neuron: Neuron, flags: str) -> None:
    with pytest.raises(RuntimeError, match="Compilation failed for 0"):
        traced(load_sdk(), Counter(), flags=flags)


def test_parallel_layers_are_made_in_a_parallel_state(neuron: Neuron) -> None:
    with pytest.raises(AssertionError, match="NxDParallelState"):
        load_sdk().column(4, 4)


def test_an_embedding_dealt_out_by_id_would_need_its_rank(neuron: Neuron) -> None:
    sdk = load_sdk()
    with (
        sdk.parallel_state(world_size=2, tensor_model_parallel_size=2),
        pytest.raises(AssertionError, match="rank"),
    ):
        sdk.embedding(4, 4)


def test_sharding_drops_what_the_model_lacks_and_consumes_its_argument(neuron: Neuron) -> None:
    sdk, checkpoint = (
        load_sdk(),
        {"weight": torch.ones(2), "table": torch.ones(2), "unknown": torch.ones(2)},
    )
    with sdk.parallel_state(world_size=1, tensor_model_parallel_size=1):
        (shard,) = sdk.shard_checkpoint(checkpoint=checkpoint, model=Counter())
    assert set(shard) == {"weight", "table"}
    assert checkpoint == {}
