"""Loads a compiled target on the NeuronCores of trn2 and trn3 by native PyTorch, with one process
for each rank. Not yet run on hardware: see docs/neuron-reference.md.
"""

from __future__ import annotations

from pathlib import Path

from inference.backends.native.program import GRAPHS, RankPlan
from inference.backends.native.ranks import Lost, Ranks, end_process
from inference.backends.native.sdk import (
    FLAGS,
    TRAINIUM,
    Machine,
    check_native,
    check_same_versions,
    configure,
)
from inference.backends.neuron.loading import check_logical_cores
from inference.backends.neuron.model import PACKAGE, NeuronModel, Say, runtime_error
from inference.errors import BadArtifact, OutriderError
from inference.files.artifact import Manifest


def check_native_machine(manifest: Manifest) -> None:
    """Raise an error that names the remedy unless this machine can run the artefact."""
    if PACKAGE in manifest.files:
        raise BadArtifact(
            f"the artefact was built for {manifest.target} with PyTorch/XLA (Neuron SDK 2.31 or "
            "earlier): build it again with Neuron SDK 2.33 or later"
        )
    check_same_versions(manifest.versions, check_native(manifest.target))
    check_logical_cores(manifest, manifest.host.get("logical_cores"))


def load_native(
    directory: Path,
    manifest: Manifest,
    say: Say,
    machine: Machine = TRAINIUM,
    lost: Lost = end_process,
) -> NeuronModel:
    """Load an artefact whose files were checked. Takes minutes, and reports its progress to `say`.

    lost: called with the reason if a rank ends
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
            "held: build it again on this machine"
        )
    return model


def compiled_files(graphs: Path) -> set[Path]:
    """Return the files of compiled graphs in an artefact."""
    return {path for path in graphs.rglob("*") if path.is_file()}
