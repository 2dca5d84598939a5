"""Stand-in for torch_neuronx.trace: one core, inputs by position, state by aliases from
parameters to outputs.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn


def torch_neuronx_module(neuron: Any) -> Any:
    """The part of the module that is used."""
    from tests.fake_nxd import Operations, check_boundary, check_flags, check_signature

    class Trace(nn.Module):
        def __init__(
            self, module: nn.Module, example: tuple[Tensor, ...], aliases: dict[str, int]
        ) -> None:
            super().__init__()
            self.module, self.example, self.aliases, self.on_device = (
                module,
                example,
                aliases,
                False,
            )

        def forward(self, *inputs: Tensor) -> Any:
            if not self.on_device:
                raise RuntimeError(
                    "the weights would travel on every call: move_trace_to_device() comes first"
                )
            if [tensor.shape for tensor in inputs] != [tensor.shape for tensor in self.example]:
                raise RuntimeError("the shapes are fixed at trace time")
            check_boundary({str(index): tensor for index, tensor in enumerate(inputs)})
            with torch.no_grad(), Operations():
                outputs = self.module(*inputs)
            for name, index in self.aliases.items():
                self.module.get_parameter(name).data = outputs[index]
            return tuple(
                output for index, output in enumerate(outputs) if index not in self.aliases.values()
            )

    def trace(
        func: Any,
        example_inputs: Any,
        *_: Any,
        input_output_aliases: Any = {},  # noqa: B006 (as the real one)
        compiler_workdir: Any = None,
        compiler_args: Any = None,
        partitioner_config: Any = None,
        inline_weights_to_neff: bool = True,
        cpu_backend: bool = False,
    ) -> Trace:
        assert not _, "everything but the example is given by name"
        assert not inline_weights_to_neff, "weights inside the NEFF cannot be shared or cached"
        assert cpu_backend or neuron.device, "without a device tracing needs cpu_backend=True"
        check_signature(func.forward)
        check_flags(compiler_args, neuron.device)
        neuron.check_platform()
        if neuron.compiler_fails:
            raise RuntimeError(neuron.compiler_fails)
        check_boundary({str(index): tensor for index, tensor in enumerate(example_inputs)})
        names = {
            id(tensor): name for name, tensor in func.named_parameters()
        }  # buffers are not looked at
        aliases = {names[id(tensor)]: index for tensor, index in input_output_aliases.items()}
        module = copy.deepcopy(func)
        before = {name: tensor for name, tensor in module.named_parameters() if name in aliases}
        with torch.no_grad(), Operations():
            outputs = module(*example_inputs)
        for name, index in aliases.items():
            assert getattr(module, name) is before[name], (
                f"{name} is aliased: the graph returns it and does not reassign it"
            )
            assert (outputs[index].shape, outputs[index].dtype) == (
                before[name].shape,
                before[name].dtype,
            ), f"{name} changes its shape"
        return Trace(copy.deepcopy(func), tuple(example_inputs), aliases)

    def move_trace_to_device(trace: Any, device_id: int) -> None:
        if not neuron.device:
            raise RuntimeError("nrt_init failed: no neuron device")
        trace.on_device = True

    return types.SimpleNamespace(
        trace=trace,
        move_trace_to_device=move_trace_to_device,
        __version__=neuron.versions.get("torch-neuronx"),
    )
