"""A compiled target on NeuronCores, which serves one call at a time.

The caches are the graphs' state on the device, so every row takes part in every call. A row without
a segment writes to its junk slot. Not yet run on hardware: see docs/neuron.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.artifact import Bucket, Manifest
from inference.backends import Segment
from inference.backends.compiled import CompiledModel, empty_caches
from inference.errors import Busy, InvalidRequest, OutriderError, Unavailable
from inference.model.checkpoint import DTYPES
from inference.model.config import parse_config
from inference.model.sampler import Sampling
from inference.model.verify_graph import copy_inputs, stateful_inputs
from inference.tree import IntArray

PACKAGE = "graphs/nxd_model.pt"
"""All graphs in one file, made by NxD's ModelBuilder."""

COPY = "copy_rows"
"""Name of the graph that copies rows of the caches. An artefact with several rows has it."""

COPY_RECORD = f"graphs/{COPY}.json"
"""File with the inputs of the copying graph. The manifest lists it where the package has that
graph.
"""

SHARD = "weights/tp{}_sharded_checkpoint.safetensors"
"""Weights of one tensor-parallel rank, by NxD's file name."""

Say = Callable[[str], None]
_BUSY = ("not available", "nrt_allocate", "resource busy", "already in use")
_NUMERICAL = ("1003", "numerical")


class Program(Protocol):
    """The graphs on the device: calls one by name and returns its output on the host."""

    def __call__(self, graph: str, inputs: dict[str, Tensor]) -> Tensor: ...


class NeuronModel(CompiledModel):
    """A compiled target whose caches live on the device. The graphs write them, not this class."""

    def __init__(self, program: Program, manifest: Manifest, say: Say) -> None:
        graphs: dict[Bucket, Any] = {
            bucket: partial(program, bucket.name) for bucket in manifest.buckets
        }
        with torch.device("meta"):  # their shape is all that this side has of them
            caches = empty_caches(
                parse_config(manifest.config),
                manifest.rows,
                manifest.capacity,
                DTYPES[manifest.dtype],
            )
        super().__init__(graphs, *caches)
        self.device = torch.device("xla")
        self.copies_rows = COPY_RECORD in manifest.files
        self._program = program
        self._one_call = threading.Lock()
        self._warm(say)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """Copy a whole row, junk slot included, by one call of the copying graph.

        That call keeps every other row. Raises InvalidRequest for an artefact without the graph.
        """
        if not self.copies_rows:
            raise InvalidRequest(
                "this artefact has no graph that copies rows: it has one row, which needs none"
            )
        inputs = copy_inputs(self.rows)
        inputs["rows"][target] = source
        self._run(COPY, inputs)

    def _call(self, bucket: Bucket, segments: Sequence[Segment]) -> list[IntArray]:
        return picked(bucket, self._run(bucket.name, fill(bucket, segments)), segments)

    def _run(self, graph: str, inputs: dict[str, Tensor]) -> Tensor:
        """Call a graph while no other call is in flight: all graphs share the device's state."""
        with self._one_call:
            try:
                return self._program(graph, inputs)
            except RuntimeError as error:
                raise runtime_error(error) from error

    def _idle_calls(self) -> dict[str, dict[str, Tensor]]:
        """Return, for each graph by name, inputs that change nothing."""
        idle = {bucket.name: stateful_inputs(bucket) for bucket in self.graphs}
        return idle | ({COPY: copy_inputs(self.rows)} if self.copies_rows else {})

    def _warm(self, say: Say) -> None:
        """Call every graph once with idle inputs: the first call of a graph initialises it."""
        idle = self._idle_calls()
        for index, (graph, inputs) in enumerate(idle.items(), 1):
            start = time.perf_counter()
            self._run(graph, inputs)
            say(
                f"[{index}/{len(idle)}] {graph} ran in {(time.perf_counter() - start) * 1000:.1f} "
                "ms"
            )


def fill(bucket: Bucket, segments: Sequence[Segment]) -> dict[str, Tensor]:
    """Return the inputs of a call: idle everywhere but in the segments' cache rows."""
    inputs = stateful_inputs(bucket)
    for segment in segments:
        row, n = segment.row, len(segment.tokens)
        for name, values in (
            ("tokens", segment.tokens),
            ("slots", segment.slots),
            ("positions", segment.positions),
        ):
            inputs[name][row, :n] = _int32(values)
        inputs["context_mask"][row, :, : segment.context.shape[1]] = _int32(segment.context)
        inputs["tree_mask"][row, :n, :n] = _int32(segment.tree_mask)
        if "pick" in inputs:
            inputs["pick"][row] = int(segment.pick[0])
        if "first" in inputs:
            inputs["first"][row] = int(segment.positions[segment.pick].min())
    if bucket.sampled:
        sampling = Sampling.of([segment.params for segment in segments], torch.device("cpu"))
        for name, part in sampling._asdict().items():
            inputs[name][[segment.row for segment in segments]] = part
    return inputs


def picked(bucket: Bucket, chosen: Tensor, segments: Sequence[Segment]) -> list[IntArray]:
    """Return what a call chose at each segment's picked nodes.

    chosen: [rows, picks] int32
    """
    table = chosen.numpy().astype(np.int32)
    if bucket.picks == bucket.nodes:
        return [table[segment.row, segment.pick] for segment in segments]
    return [table[segment.row, : len(segment.pick)] for segment in segments]


def runtime_error(error: Exception) -> OutriderError:
    """Return an error of ours that says what a Neuron runtime error means for the user."""
    text = str(error)
    line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    if any(word in text.lower() for word in _BUSY):
        return Busy(
            f"the NeuronCores cannot be had ({line}): another process has reserved them, and keeps "
            "them until it ends. "
            "neuron-ls shows which; or share them out with NEURON_RT_VISIBLE_CORES"
        )
    if any(word in text.lower() for word in _NUMERICAL):
        return Unavailable(
            f"the device met a NaN or an infinity and gave the call up ({line}): the row is lost, "
            "and this is a defect to report"
        )
    return Unavailable(f"the Neuron runtime failed: {line}")


def _int32(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
