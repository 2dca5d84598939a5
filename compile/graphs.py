"""The small graphs that a Neuron target calls between those of its spec."""

from __future__ import annotations

from torch import Tensor

from compile.spec import CompileSpec
from inference.backends.neuron import COPY, FILL
from inference.model.noise_window import Place, fill_inputs
from inference.model.verify_graph import copy_inputs


def calls_between(spec: CompileSpec) -> dict[str, dict[str, Tensor]]:
    """The inputs of an idle call of each, by name: one copies a row, where there are several, and
    one makes noise, where a graph is sampled.
    """
    calls = {COPY: copy_inputs()} if spec.rows > 1 else {}
    if any(bucket.sampled for bucket in spec.graphs):
        calls[FILL] = fill_inputs([Place(0, 0, 0)])
    return calls
