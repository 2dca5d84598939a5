"""Heads beside their target, from published checkpoints: what --draft eagle and dflash share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import torch

from inference.backends import Masks, Model, RecordingModel
from inference.backends.eager import EagerModel
from inference.backends.eagle_model import read_embeddings
from inference.backends.graphs.compiled import CompiledModel
from inference.backends.target_features import FeatureModel, FeatureSequence, feature_model
from inference.command import say
from inference.drafters.draft import Draft
from inference.errors import InvalidRequest, UnsupportedModel
from inference.files.artifact import Manifest, features_of
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.config import ModelConfig
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.eagle_head import OfTarget
from outrider.draft_methods import FoundDraft
from outrider.models.artifacts import artifact_checkpoint
from outrider.models.capacity import Capacity
from outrider.models.devices import describe
from outrider.models.directories import find_directory
from outrider.models.found_model import LoadedModel
from outrider.models.loading import Checkpoint, find_checkpoint
from outrider.models.profiles import record_calls
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import FusedTargetRole


class LoadedHead(NamedTuple):
    """A head, the layers of the target whose inputs it reads, and the size of its weights."""

    model: LoadedModel
    kept: tuple[int, ...]
    parameters: int


class HeadMethod(NamedTuple):
    """A kind of head.

    flag: value of --draft
    kept: returns the layers of the target whose inputs a checkpoint of a head reads
    load: loads the head of a directory
    masks: returns the masks of a loaded head; None for a head without
    """

    flag: str
    kept: Callable[[Path, ModelConfig], tuple[int, ...]]
    load: Callable[[Path, OfTarget, Capacity], LoadedHead]
    masks: Callable[[LoadedModel], Masks | None]


@dataclass(frozen=True, kw_only=True)
class FoundHead(Checkpoint):
    """The checkpoint of a head's target, with the head's name.

    beside: name of the target
    head: directory of the head's files
    target: the model that stores features for it
    inputs: the head's inputs from the target
    """

    beside: str
    head: Path
    target: FeatureModel
    inputs: OfTarget
    method: HeadMethod

    def fingerprint(self) -> str:
        return fingerprint(self.head)

    def settled(self, options: DeviceOptions, *, drafts: bool) -> Self:
        return self

    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        """Load the head on its target's device, in its precision."""
        start = time.perf_counter()
        head = self.method.load(self.head, self.inputs, capacity)
        self.target.keep_features(head.kept)
        if isinstance(self.target, RecordingModel):  # whose recordings stored none
            record_calls(self.target, say)
        layers = ", ".join(map(str, head.kept))
        say(
            f"{self.name}: a head of {head.parameters / 1e6:.1f} M parameters on inputs of "
            f"layers {layers} of {self.beside}, on {describe(head.model.device)}, loaded in "
            f"{time.perf_counter() - start:.1f} s"
        )
        return head.model


def find_head(method: HeadMethod, options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """The head of --draft_model. Raises UnsupportedModel for a target without features."""
    assert isinstance(options, FusedTargetRole), "no other role has a draft beside its target"
    assert target is not None, "a head drafts beside its target"
    if options.draft_model is None:
        raise InvalidRequest(
            f"--draft {method.flag} needs --draft_model: the directory or hub name of a head that "
            "was made for the target"
        )
    directory = find_directory(options.draft_model, "draft")
    real, name = feature_model(target), options.draft_model
    if isinstance(real, CompiledModel) and options.artifact:
        manifest, checkpoint = artifact_checkpoint(Path(options.artifact))
        _check_features(manifest, checkpoint, name, method.kept(directory, checkpoint.config))
        inputs = _inputs(manifest, checkpoint)
    elif isinstance(real, EagerModel):
        checkpoint = find_checkpoint(options.target_name, "target")
        inputs = OfTarget.of(real.decoder)
    else:
        raise UnsupportedModel(
            f"--draft {method.flag} reads features of a target on cpu or cuda, or of an artefact "
            "that was built with --features"
        )
    fields = vars(replace(checkpoint, name=name)) | {"beside": checkpoint.name}
    found = FoundHead(**fields, head=directory, target=real, inputs=inputs, method=method)
    sequence = partial(FeatureSequence, real)
    return FoundDraft.of(found, lambda model: Draft(model, method.masks(model), sequence))


def _check_features(
    manifest: Manifest, target: Checkpoint, name: str, reads: tuple[int, ...]
) -> None:
    """Raise UnsupportedModel, with the command to rebuild, unless the artefact's graphs return the
    features that the head reads.
    """
    if not set(reads) <= set(manifest.features):
        raise UnsupportedModel(
            f"{target.directory}: its graphs return {features_of(manifest.features)}, and {name} "
            f"reads {features_of(reads)}: build it again with {_command(manifest)} --features "
            f"{','.join(map(str, reads))}"
        )


def _command(manifest: Manifest) -> str:
    """The command line that built the artefact, without --features."""
    build = "outrider compile"
    is_complete = manifest.command.startswith(f"{build} ") and manifest.command.isprintable()
    return manifest.command if is_complete else build


def _inputs(manifest: Manifest, target: Checkpoint) -> OfTarget:
    """Return a head's inputs from an artefact's target. They are computed on the host, in the
    precision of the target's states.
    """

    def output() -> torch.Tensor:
        if not target.config.tied:
            raise UnsupportedModel(
                f"{target.directory}: a head without an output layer needs a target whose "
                "embeddings and output layer are tied, or one that is not compiled"
            )
        return embeddings()

    embeddings = partial(read_embeddings, target.directory, manifest)
    return OfTarget(
        target.config,
        manifest.vocabulary,
        DTYPES[manifest.dtype],
        torch.device("cpu"),
        embeddings,
        output,
    )
