"""Loads a compiled target on the NeuronCores of trn1 and inf2 by PyTorch/XLA: checks the machine,
loads weights, runs every graph once. Not yet run on hardware: see docs/trainium.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from inference.backends.neuron.model import (
    PACKAGE,
    SHARD,
    NeuronFusedModel,
    NeuronModel,
    Program,
    Say,
    calls_between,
    runtime_error,
)
from inference.backends.neuron.sdk import (
    COMPILER,
    DEVICE,
    has_device,
    instance_family,
    load_sdk,
    logical_cores,
    reserve_cores,
    sdk_versions,
)
from inference.errors import BadArtifact, InvalidRequest, OutriderError
from inference.files.artifact import Manifest

_TARGETS = ("trn1", "inf2")


def load_neuron(directory: Path, manifest: Manifest, say: Say) -> NeuronModel:
    """Load an artefact, whose files were checked, on this machine's NeuronCores.

    Takes minutes, and reports its progress to `say`.
    """
    check_machine(manifest)
    say(f"loading {manifest.model} on {manifest.tensor_parallel} {manifest.target} cores")
    try:
        program = _load_package(directory, manifest)
    except OutriderError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        raise runtime_error(error) from error
    if manifest.fused is not None:
        return NeuronFusedModel(program, manifest, say)
    return NeuronModel(program, manifest, say)


def check_machine(manifest: Manifest) -> None:
    """Reserve cores. Raise an error with a remedy unless this machine can run the artefact.

    Nothing is loaded yet.
    """
    if manifest.target not in _TARGETS:
        raise BadArtifact(
            f"the artefact was built for {manifest.target}, --device neuron runs those for trn1 "
            "and inf2 here"
        )
    if not has_device():
        raise InvalidRequest(
            f"--device neuron: this machine has no Neuron device ({DEVICE} is missing). On a trn "
            "or inf instance install the driver "
            "(aws-neuronx-dkms) or use a Neuron AMI; in a container pass the device through"
        )
    family = instance_family()
    if family not in (None, manifest.target):
        raise BadArtifact(
            f"the artefact was built for {manifest.target}, this is a {family} instance: build it "
            f"with --target {family}"
        )
    reserve_cores(manifest.tensor_parallel)
    check_logical_cores(manifest, manifest.host.get("logical_cores", "1"))
    _check_versions(manifest)


def _check_versions(manifest: Manifest) -> None:
    """Raise BadArtifact unless the package versions are those with which the artefact was built.

    NxD is neither forward nor backward compatible. The compiler's version does not matter.
    """
    versions = sdk_versions(compiles=False)
    for name, built in manifest.versions.items():
        if name != COMPILER and versions.get(name) != built:
            raise BadArtifact(
                f"the artefact was built with {name} {built}, here is {versions.get(name)}: "
                f"install that version (Neuron SDK {manifest.versions.get('neuron-sdk')}) or build "
                "the artefact again"
            )


def _load_package(directory: Path, manifest: Manifest) -> Program:
    """Load an NxDModel, which consists of one file with all graphs and one weight file for each
    rank.
    """
    sdk = load_sdk()
    model = sdk.nxd_model.load(str(directory / PACKAGE))
    if not isinstance(model, sdk.nxd_model):  # NxD returns another type for other versions
        raise BadArtifact(
            "this neuronx-distributed does not understand the artefact's package: build it again "
            "with the version here"
        )
    graphs = {*(bucket.name for bucket in manifest.graphs), *calls_between(manifest)}
    missing = graphs - set(model.get_available_keys())
    if missing:
        raise BadArtifact(
            f"the package lacks graph {min(missing)}, which its manifest names: build it again"
        )
    ranks = range(manifest.tensor_parallel)
    model.set_weights([load_file(directory / SHARD.format(rank)) for rank in ranks])
    model.to_neuron()

    def call(graph: str, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        outputs: Tensor | Sequence[Tensor] = model(**inputs, model_name=graph)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    return call


def check_logical_cores(manifest: Manifest, built: str | None) -> None:
    """Raise BadArtifact unless this machine's logical cores are as the artefact was built for."""
    cores = str(logical_cores(manifest.target))
    if built != cores:
        raise BadArtifact(
            f"the artefact was built for logical cores of {built}, here NEURON_LOGICAL_NC_CONFIG "
            f"means {cores}"
        )
