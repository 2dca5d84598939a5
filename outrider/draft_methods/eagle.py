"""--draft eagle: an EAGLE-3 head, from its published checkpoint, on the target's device."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from inference.backends import Model, RecordingModel
from inference.backends.eager import EagerModel
from inference.backends.eagle_model import (
    EagleModel,
    FeatureModel,
    FeatureSequence,
    feature_model,
    read_embeddings,
)
from inference.backends.graphs.compiled import CompiledModel
from inference.command import say
from inference.drafters.growing_proposer import Draft
from inference.errors import InvalidRequest, UnsupportedModel
from inference.files.artifact import Manifest, features_of
from inference.model.checkpoints.checkpoint import DTYPES
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.eagle_head import OfTarget, read_head, read_head_config
from outrider.draft_methods import FoundDraft
from outrider.models.artifacts import artifact_checkpoint
from outrider.models.devices import describe
from outrider.models.found_model import Capacity, find_directory
from outrider.models.loading import Checkpoint, find_checkpoint
from outrider.models.profiles import record_calls
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import FusedTargetRole


@dataclass(frozen=True, kw_only=True)
class FoundHead(Checkpoint):
    """A head: the checkpoint of its target, under the head's name.

    beside: the target's name
    head: directory of the head's files
    target: the loaded target, which stores features for the head
    inputs: what the head takes from the target as inputs
    """

    beside: str
    head: Path
    target: FeatureModel
    inputs: OfTarget

    def fingerprint(self) -> str:
        return fingerprint(self.head)

    def settled(self, options: DeviceOptions, *, drafts: bool) -> Self:
        return self

    def load(self, options: DeviceOptions, capacity: Capacity) -> EagleModel:
        """Load the head on its target's device, in its precision."""
        start = time.perf_counter()
        head = read_head(self.head, self.inputs, capacity.sequence_length)
        self.target.keep_features(head.config.feature_layers)
        if isinstance(self.target, RecordingModel):  # its recordings lack features
            record_calls(self.target, say)
        rows, slots, nodes = capacity.rows, capacity.slots, capacity.max_nodes
        model = EagleModel(head, rows=rows, capacity=slots, max_nodes=nodes)
        parameters = sum(parameter.numel() for parameter in head.parameters())
        layers = ", ".join(map(str, head.config.feature_layers))
        say(
            f"{self.name}: a head of {parameters / 1e6:.1f} M parameters on inputs of "
            f"layers {layers} of {self.beside}, on {describe(model.device)}, loaded in "
            f"{time.perf_counter() - start:.1f} s"
        )
        return model


def find(options: DraftModelOptions, target: Model | None) -> FoundDraft:
    """Find the head of --draft_model. Raises UnsupportedModel for a target without features."""
    assert isinstance(options, FusedTargetRole), "no other role has a draft beside its target"
    assert target is not None, "a head drafts beside its target"
    if options.draft_model is None:
        raise InvalidRequest(
            "--draft eagle needs --draft_model: the directory or hub name of an EAGLE head that "
            "was made for the target"
        )
    directory = find_directory(options.draft_model, "draft")
    real, name = feature_model(target), options.draft_model
    if isinstance(real, CompiledModel) and options.artifact:
        manifest, checkpoint = artifact_checkpoint(Path(options.artifact))
        _check_features(manifest, checkpoint, name, directory)
        inputs = _inputs(manifest, checkpoint)
    elif isinstance(real, EagerModel):
        checkpoint = find_checkpoint(options.target_name, "target")
        inputs = OfTarget.of(real.decoder)
    else:
        raise UnsupportedModel(
            "--draft eagle reads features of a target on cpu or cuda, or of an artefact that was "
            "built with --features"
        )
    fields = vars(replace(checkpoint, name=name)) | {"beside": checkpoint.name}
    model = FoundHead(**fields, head=directory, target=real, inputs=inputs)
    return FoundDraft.of(model, partial(Draft, sequence=partial(FeatureSequence, real)))


def _check_features(manifest: Manifest, target: Checkpoint, name: str, head: Path) -> None:
    """Raise UnsupportedModel, with the command that rebuilds the artefact, unless its graphs
    return the features that the head reads.
    """
    reads = read_head_config(head, target.config).feature_layers
    if not set(reads) <= set(manifest.features):
        raise UnsupportedModel(
            f"{target.directory}: its graphs return {features_of(manifest.features)}, and {name} "
            f"reads {features_of(reads)}: build it again with {_command(manifest)} --features "
            f"{','.join(map(str, reads))}"
        )


def _command(manifest: Manifest) -> str:
    """Return the command line that built the artefact, without --features."""
    build = "outrider compile"
    is_complete = manifest.command.startswith(f"{build} ") and manifest.command.isprintable()
    return manifest.command if is_complete else build


def _inputs(manifest: Manifest, target: Checkpoint) -> OfTarget:
    """Return a head's inputs from the target in an artefact. The inputs are computed on the host,
    in the precision of the target's states.
    """
    return OfTarget(
        target.config,
        manifest.vocabulary,
        DTYPES[manifest.dtype],
        torch.device("cpu"),
        partial(read_embeddings, target.directory, manifest),
    )
