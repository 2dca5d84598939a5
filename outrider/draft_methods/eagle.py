"""--draft eagle: an EAGLE-3 head beside its target, from its published checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inference.artifact import features_of
from inference.backends import Model
from inference.backends.timed import TimedModel
from inference.command import say
from inference.errors import InvalidRequest, UnsupportedModel
from outrider.artifacts import artifact_checkpoint
from outrider.devices import describe
from outrider.models import Checkpoint, OfCheckpoint, find_checkpoint, find_directory
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import FusedTargetRole

if TYPE_CHECKING:
    from inference.artifact import Manifest
    from inference.backends.eagle import EagleModel
    from inference.backends.features import KeepsFeatures
    from inference.model.eagle import HeadTarget


@dataclass(frozen=True)
class FoundHead(OfCheckpoint):
    """A FoundModel that drafts beside `target` only, whose checkpoint gives tokenizer and limits.

    called: the head's name
    directory: where the head's files are
    parts: what it takes from the target
    """

    called: str
    directory: Path
    target: KeepsFeatures
    parts: HeadTarget

    @property
    def name(self) -> str:
        return self.called

    def fingerprint(self) -> str:
        from inference.model.checkpoint import fingerprint

        return fingerprint(self.directory)

    def load(
        self,
        options: DeviceOptions,
        *,
        rows: int,
        sequence_length: int,
        spare: int,
        max_nodes: int,
    ) -> EagleModel:
        """Load the head where its target is, in its precision: the options' own do not count."""
        from inference.backends.eagle import EagleModel
        from inference.model.eagle import load_head_for

        begun = time.perf_counter()
        head = load_head_for(self.directory, self.parts, sequence_length)
        capacity = sequence_length + spare
        model = EagleModel(head, self.target, rows=rows, capacity=capacity, max_nodes=max_nodes)
        parameters = sum(parameter.numel() for parameter in head.parameters())
        layers = ", ".join(map(str, head.config.kept))
        say(
            f"{self.name}: a head of {parameters / 1e6:.1f} M parameters on inputs of layers "
            f"{layers} of {self.checkpoint.name}, on {describe(model.device)}, loaded in "
            f"{time.perf_counter() - begun:.1f} s"
        )
        return model


def find(options: DraftModelOptions, target: Model | None) -> FoundHead:
    """The head of --draft_model. Raises UnsupportedModel for a target that keeps no features."""
    from inference.backends.compiled import CompiledModel
    from inference.backends.eager import EagerModel
    from inference.model.eagle import HeadTarget

    if options.draft_model is None:
        raise InvalidRequest(
            "--draft eagle needs --draft_model: the directory or hub name of an EAGLE-3 head that "
            "was made for the target"
        )
    real = target.real if isinstance(target, TimedModel) else target
    assert isinstance(options, FusedTargetRole), "other roles have no target to stand beside"
    directory = find_directory(options.draft_model, "draft")
    if isinstance(real, CompiledModel) and options.artifact:
        checkpoint, parts = _of_artifact(Path(options.artifact), options.draft_model, directory)
        return FoundHead(checkpoint, options.draft_model, directory, real, parts)
    if not isinstance(real, EagerModel):
        raise UnsupportedModel(
            "--draft eagle reads features of a target on cpu or cuda, or of an artefact that was "
            "built with --features"
        )
    checkpoint = find_checkpoint(options.target_name, "target")
    return FoundHead(checkpoint, options.draft_model, directory, real, HeadTarget.of(real.decoder))


def _of_artifact(artifact: Path, name: str, head: Path) -> tuple[Checkpoint, HeadTarget]:
    """What a head has of its target's artefact. Raises UnsupportedModel, with the command that
    mends it, where the graphs do not return what the head reads.
    """
    from inference.backends.artifact_embeddings import read_embeddings
    from inference.model.eagle import HeadTarget
    from inference.model.eagle_config import read_head_config

    manifest, checkpoint = artifact_checkpoint(artifact)
    reads = read_head_config(head, checkpoint.config).kept
    if not set(reads) <= set(manifest.features):
        raise UnsupportedModel(
            f"{artifact} was built with {features_of(manifest.features)}, and {name} reads "
            f"{features_of(reads)}: build it again with {_command(manifest)} --features "
            f"{','.join(map(str, reads))}"
        )
    embeddings = read_embeddings(artifact, manifest)
    return checkpoint, HeadTarget(checkpoint.config, manifest.vocabulary, embeddings)


def _command(manifest: Manifest) -> str:
    """The command line that built the artefact, to which flags can be added."""
    build = "python -m compile"
    told = manifest.command.startswith(f"{build} ") and manifest.command.isprintable()
    return manifest.command if told else build
