"""A rank's layers with matrices of 8-bit floats (inference/model/float8.py).

NxD's own quantized layers add a row-parallel layer's parts in the states' type. These are NxD's
plain layers, whose parameters are dealt out as ever, with a product of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compile.parallel import leave, parallel_layers, summing_type
from compile.spec import CompileSpec
from inference.backends.neuron_sdk import Sdk
from inference.model.decoder import Layers
from inference.model.float8 import scaled, states_of


def layers_of(sdk: Sdk, spec: CompileSpec) -> Layers:
    """The layers of one of the spec's ranks, to be used within the SDK's parallel state."""
    made = _float8_layers if spec.dtype == "fp8" else parallel_layers
    return made(sdk, states_of(spec.dtype), spec.tensor_parallel)


def _float8_layers(sdk: Sdk, dtype: torch.dtype, ranks: int) -> Layers:
    """parallel_layers() with matrices in levels and scales. dtype: the states' type"""
    summed, group = summing_type(dtype, ranks), sdk.group()

    class Column(sdk.column):  # type: ignore[misc, name-defined]
        """This rank's outputs; as a head, its logits, of which the decoder leaves padding out."""

        def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
            super().__init__(
                inputs, outputs, bias=bias, gather_output=False, dtype=dtype, init_method=leave
            )
            self.scale = sdk.column(
                1, outputs, bias=False, gather_output=False, dtype=torch.float32, init_method=leave
            )

        def forward(self, x: Tensor, vocabulary: int | None = None) -> Tensor:
            product = F.linear(x, self.weight.to(x.dtype))
            return scaled(product, self.scale.weight, self.bias, x.dtype)

    class Row(sdk.row):  # type: ignore[misc, name-defined]
        """All outputs. The ranks' parts are added before they are scaled: all have one scale."""

        def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
            super().__init__(
                inputs,
                outputs,
                bias=bias,
                input_is_parallel=True,
                dtype=dtype,
                reduce_dtype=summed,
                init_method=leave,
            )
            self.scale = nn.Linear(1, outputs, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            part: Any = F.linear(x, self.weight.to(x.dtype))
            whole = sdk.reduce(part.to(summed), group)
            return scaled(whole, self.scale.weight, self.bias, x.dtype)

    return parallel_layers(sdk, dtype, ranks)._replace(column=Column, row=Row, head=Column)
