"""Loads a target for trn2 or trn3 by native PyTorch: checks the machine, starts the ranks, and
calls every graph once.

The graphs were compiled when the artefact was built. Where TorchNeuron compiles one again, that is
said. Not yet run on hardware: see docs/neuron-native.md.
"""

from __future__ import annotations

from pathlib import Path

from inference.artifact import Manifest
from inference.backends.neuron import PACKAGE, NeuronModel, Say, runtime_error
from inference.backends.neuron_sdk import logical_cores
from inference.backends.torch_neuron import GRAPHS, RankPlan
from inference.backends.torch_neuron_ranks import Lost, Ranks, end_process
from inference.backends.torch_neuron_sdk import (
    TRAINIUM,
    Machine,
    check_native,
    check_same_versions,
    configure,
)
from inference.errors import BadArtifact, OutriderError

FLAGS = "NEURON_CC_FLAGS"
"""Name of the compiler flags in a manifest: one line, as the variable holds them."""


def check_native_machine(manifest: Manifest) -> None:
    """Raise, naming the remedy, unless this machine can run the artefact. Nothing is loaded yet."""
    if PACKAGE in manifest.files:
        raise BadArtifact(
            f"the artefact was built for {manifest.target} with PyTorch/XLA (Neuron SDK 2.31 or "
            "earlier): build it again with Neuron SDK 2.33 or later"
        )
    check_same_versions(manifest.versions, check_native(manifest.target))
    built, here = manifest.host.get("logical_cores"), str(logical_cores(manifest.target))
    if built != here:
        raise BadArtifact(
            f"the artefact was built for logical cores of {built}, here NEURON_LOGICAL_NC_CONFIG "
            f"means {here}"
        )


def load_torch_neuron(
    directory: Path,
    manifest: Manifest,
    say: Say,
    machine: Machine = TRAINIUM,
    lost: Lost = end_process,
) -> NeuronModel:
    """Load an artefact whose files were checked. Takes minutes, and reports its progress to `say`.

    lost: hears of a rank's end
    """
    graphs = directory / GRAPHS
    configure(graphs, manifest.compiler_flags.get(FLAGS, ""))
    say(f"loading {manifest.model} on {manifest.tensor_parallel} {manifest.target} cores")
    before = compiled_files(graphs)
    try:
        program = Ranks(RankPlan(directory, manifest, machine), lost)
    except OutriderError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        raise runtime_error(error) from error
    model = NeuronModel(program, manifest, say)
    again = len(compiled_files(graphs) - before)
    if again:
        say(
            f"warning: {again} graphs were compiled here again, which the artefact should have "
            "held: build it anew on this machine"
        )
    return model


def compiled_files(graphs: Path) -> set[Path]:
    """The compiled graphs in an artefact."""
    return {path for path in graphs.rglob("*") if path.is_file()}
