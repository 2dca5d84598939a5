"""Loads the model of --artifact DIR on this machine. Its manifest replaces other model flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inference.command import say
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import NATIVE, check_files, features_of, read_manifest
from inference.files.writing import cache_directory
from inference.model.checkpoints.config import parse_config
from inference.text.tokenizer import Tokenizer
from outrider.models.devices import set_threads
from outrider.models.loading import Checkpoint
from outrider.options.groups import TargetOptions
from outrider.options.roles import FusedTargetRole

if TYPE_CHECKING:
    from inference.backends.graphs.compiled import CompiledModel
    from inference.files.artifact import Manifest

Served = TypeVar("Served", bound=TargetOptions)
_DECIDED = ("model", "target_model", "dtype")


def open_artifact(options: TargetOptions) -> tuple[Manifest, Checkpoint]:
    """Check the files of --artifact, and read its manifest and its checkpoint. Raises BadArtifact,
    naming the file that differs from the build.
    """
    for name in _DECIDED:
        if getattr(options, name) is not None:
            raise InvalidRequest(f"--artifact holds the model, compiled: leave out --{name}")
    directory = Path(options.artifact or "")
    manifest = _read(options.device, directory)
    tokenizer = Tokenizer(directory)
    if tokenizer.fingerprint() != manifest.tokenizer_fingerprint:
        raise BadArtifact(
            f"{directory / 'tokenizer.json'} is not the tokenizer that the model was compiled with"
        )
    return manifest, _checkpoint(directory, manifest, tokenizer)


def artifact_checkpoint(directory: Path) -> tuple[Manifest, Checkpoint]:
    """Read the manifest and the checkpoint of an artefact whose files are already checked."""
    manifest = read_manifest(directory)
    return manifest, _checkpoint(directory, manifest, Tokenizer(directory))


def _checkpoint(directory: Path, manifest: Manifest, tokenizer: Tokenizer) -> Checkpoint:
    config = parse_config(manifest.config, frozenset(manifest.stop_ids))
    return Checkpoint(manifest.model, directory, config, tokenizer)


def _read(device: str, directory: Path) -> Manifest:
    """Read an artefact's manifest for a device; `auto` is the device it was built for."""
    from inference.backends.graphs.compiled import read_compiled

    if device not in ("auto", "cpu", "neuron"):
        raise InvalidRequest(
            f"--device {device}: artefacts are for cpu or neuron; leave --device out to use the "
            "one it was built for"
        )
    if device == "cpu" or (device == "auto" and read_manifest(directory).target == "cpu"):
        return read_compiled(directory)
    manifest = read_manifest(directory)
    if manifest.target in NATIVE:
        from inference.backends.native.ranks import check_native_machine

        check_native_machine(manifest)
    else:
        from inference.backends.neuron.loading import check_machine

        check_machine(manifest)
    check_files(directory, manifest)
    return manifest


def load_artifact(options: TargetOptions, manifest: Manifest) -> CompiledModel:
    """Load the artefact's model, and print its properties on stderr."""
    directory = Path(options.artifact or "")
    if manifest.target in NATIVE:
        from inference.backends.native.ranks import load_native

        model: CompiledModel = load_native(directory, manifest, say)
    elif manifest.target != "cpu":
        from inference.backends.neuron.loading import load_neuron

        model = load_neuron(directory, manifest, say)
    else:
        model = _load_for_cpu(options, directory, manifest)
    if manifest.features:
        say(f"{manifest.model}: its graphs return {features_of(manifest.features)}")
    return model


def _load_for_cpu(options: TargetOptions, directory: Path, manifest: Manifest) -> CompiledModel:
    from inference.backends.graphs.compiled import WEIGHTS, load_compiled

    if manifest.fused:
        from inference.backends.graphs.fused import load_fused

        model: CompiledModel = load_fused(directory, manifest)
    else:
        model = load_compiled(directory, manifest)
    set_threads(options.threads, (directory / WEIGHTS).stat().st_size // model.dtype.itemsize)
    inside = f", with {manifest.fused.model} in them" if manifest.fused else ""
    say(
        f"{manifest.model}: compiled for cpu, {manifest.dtype}, {len(manifest.graphs)} graphs, "
        f"{manifest.rows} rows{inside}"
    )
    return model


def with_neuron_artifact(options: Served) -> Served:
    """Return the options, with an artefact added for --device neuron without --artifact.

    A matching artefact is taken from the cache; else it is built, after a notice.
    """
    if options.device != "neuron" or options.artifact:
        return options
    from compile.builders import neuron_artifact
    from compile.compile_options import CompileOptions
    from compile.plan.memory import neuron_targets
    from compile.request import find_checkpoint, make_request
    from inference.backends.neuron.sdk import has_device, instance_family

    target = instance_family() if has_device() else None
    if target not in neuron_targets():
        raise InvalidRequest(
            "--device neuron: no trn1, inf2, trn2 or trn3 instance is recognised here; build with "
            "outrider compile, then --artifact DIR"
        )
    head = None  # of an EAGLE draft, which reads the target's features
    if isinstance(options, FusedTargetRole) and options.method == "eagle":
        head = options.draft_model
    same = ("sequence_length", "max_tree_nodes", "dtype")
    flags: dict[str, Any] = {name: getattr(options, name) for name in same}
    flags |= {"target": target, "batch": options.batch, "features": head}
    build = CompileOptions(model=options.target_name, **flags)
    checkpoint = find_checkpoint(build)
    directory = neuron_artifact(
        make_request(build, checkpoint).spec,
        checkpoint.directory,
        cache_directory("artifacts"),
        command="outrider target --device neuron",
        say=say,
    )
    return options.replace(artifact=str(directory), model=None, target_model=None, dtype=None)


def artifact_length(options: TargetOptions, manifest: Manifest) -> int:
    """Return the sequence length (prompt and output). Raises InvalidRequest beyond the build's."""
    length = options.sequence_length or manifest.sequence_length
    if not 2 <= length <= manifest.sequence_length:
        raise InvalidRequest(
            f"--sequence_length {length}: the artefact was built for 2 to "
            f"{manifest.sequence_length}; build one for more"
        )
    return length
