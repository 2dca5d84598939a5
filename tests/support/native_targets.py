"""Tiny targets on native PyTorch, whose ranks run on this machine's processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compile.neuron.native import TorchNeuronBuilder
from compile.spec import CompileSpec
from inference.files.artifact import Bucket, Manifest
from tests.support.artifacts import planned_manifest
from tests.support.neuron_artifacts import FEW, source_of, spec_of
from tests.support.strict_torch_neuron import CPU


def native_spec(ranks: int = 2, buckets: Sequence[Bucket] = FEW) -> CompileSpec:
    return replace(spec_of(ranks, buckets), target="trn2")


def native_builder(checkpoint: Path, spec: CompileSpec) -> TorchNeuronBuilder:
    return TorchNeuronBuilder(
        spec, checkpoint, versions={"torch-neuronx": "2.14.3.0.1"}, machine=CPU
    )


def prepared(directory: Path, checkpoint: Path, spec: CompileSpec) -> Manifest:
    """Weights in a directory, and the manifest of an artefact of which nothing was compiled yet."""
    (directory / "weights").mkdir(parents=True)
    builder = native_builder(checkpoint, spec)
    builder.prepare(directory)
    return planned_manifest(spec, source_of(checkpoint), builder)
