"""A target with 8-bit matrices on this machine's CPU, by OpenVINO.

It is a CompiledModel whose graphs share one decoder of dynamic shapes. OpenVINO computes logits,
new keys and new values; inference/model/sampler.py makes the choice. The caches are bound, not
copied. OpenVINO compiles for the CPU that loads it. The artefact is checked on the CPU that builds
it (compile/build/openvino_builder.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.artifact import Bucket, Manifest
from inference.backends.compiled import REBUILD, CompiledModel
from inference.backends.graph_calls import unstacked
from inference.errors import BadArtifact, MissingExtra
from inference.model.cache import empty_cache
from inference.model.config import ModelConfig, parse_config
from inference.model.sampler import Sampling, choose_greedy, choose_mixed

CACHE_DTYPE = torch.float32
DECODER, DECODER_WEIGHTS = "graphs/decoder.xml", "weights/decoder.bin"
INPUTS = ("tokens", "rows", "positions", "context_mask", "tree_mask", "pick", "keys", "values")
SETTINGS: Mapping[str, str] = {
    # precision of everything but the matrix products; as fast as bf16, and rounds less
    "INFERENCE_PRECISION_HINT": "f32",
    # quantized activations have a scale for every 32 numbers of one node, never one for a call
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
}
_INSTALL = 'int8 for cpu needs OpenVINO: pip install "outrider[openvino]"'


def import_openvino() -> Any:
    """Import the package; raise MissingExtra where it is not installed.

    Importing it reports usage to its makers, so its reporting package is hidden first.
    """
    try:
        if "openvino" not in sys.modules:
            sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        return importlib.import_module("openvino")
    except ImportError as error:
        raise MissingExtra(_INSTALL) from error


def openvino_host(openvino: Any) -> dict[str, str]:
    """Facts that decide which kernels run here. Rows were checked to be bit-equal for these
    only.
    """
    core = openvino.Core()
    names = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {"openvino_cpu": " ".join(sorted(names))}


class OpenVinoDecoder:
    """A compiled decoder over caches that stay the caller's.

    keys, values: every layer's cache in one tensor, [layers, rows, slots, width] float32
    """

    def __init__(self, model: Any, keys: Tensor, values: Tensor) -> None:
        """model: an openvino.Model from INPUTS to logits, new keys and new values, of the
        caller's shapes
        """
        openvino = import_openvino()
        settings = {**SETTINGS, "INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
        self._tensor = openvino.Tensor
        self._request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
        self._caches = keys, values  # OpenVINO sees their memory only
        for name, cache in (("keys", keys), ("values", values)):
            self._request.set_tensor(name, openvino.Tensor(cache.numpy(), shared_memory=True))

    def __call__(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [B, P, V] float32, new keys and new values. The next call overwrites
        them. Without `pick` every node is picked.
        """
        rows, nodes = inputs["tokens"].shape
        every = torch.arange(nodes, dtype=torch.int32).repeat(rows, 1)
        for name in INPUTS[:-2]:
            self._request.set_tensor(name, self._tensor(inputs.get(name, every).numpy()))
        self._request.infer()
        logits, keys, values = (
            torch.from_numpy(self._request.get_output_tensor(index).data) for index in range(3)
        )
        return logits, keys, values


class OpenVinoGraph:
    """The decoder and the choice at one bucket's shapes, with the interface of a compiled
    package.
    """

    def __init__(self, decoder: OpenVinoDecoder, bucket: Bucket) -> None:
        self._decoder, self._levels = decoder, bucket.levels

    def __call__(self, **inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, keys, values = self._decoder(inputs)
        if "seed" not in inputs:
            return choose_greedy(logits), keys, values
        sampling = Sampling(*(inputs[name] for name in Sampling._fields))
        return choose_mixed(logits, sampling, inputs["after"], self._levels), keys, values


def load_openvino(directory: Path, manifest: Manifest) -> CompiledModel:
    """Load the artefact's decoder over empty caches. `read_compiled` has checked its files.

    Set torch's threads first: OpenVINO takes as many. Raises BadArtifact.
    """
    openvino = import_openvino()
    for name, here in {**openvino_host(openvino), "openvino": openvino.__version__}.items():
        built = (manifest.versions if name == "openvino" else manifest.host).get(name)
        if built != here:
            raise BadArtifact(
                f"{directory} was built with {name} {built}, this machine has {here}: {REBUILD}"
            )
    try:
        model = openvino.Core().read_model(directory / DECODER, directory / DECODER_WEIGHTS)
    except RuntimeError as error:
        raise BadArtifact(
            f"{directory / DECODER} cannot be loaded ({str(error).splitlines()[0]}): {REBUILD}"
        ) from error
    keys, values = empty_stack(parse_config(manifest.config), manifest.rows, manifest.capacity)
    decoder = OpenVinoDecoder(model, keys, values)
    graphs = {bucket: OpenVinoGraph(decoder, bucket) for bucket in manifest.buckets}
    return CompiledModel(graphs, unstacked(keys, values))


def empty_stack(config: ModelConfig, rows: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Return zeroed caches of all layers as two tensors: OpenVINO binds one for each input."""
    return empty_cache(config, rows, capacity, CACHE_DTYPE).stacked()
