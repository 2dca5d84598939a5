"""--draft eagle: an EAGLE-3 head beside its target, from its published checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inference.backends import Model
from inference.backends.timed import TimedModel
from inference.command import say
from inference.errors import InvalidRequest, UnsupportedModel
from outrider.devices import describe
from outrider.models import OfCheckpoint, find_checkpoint, find_directory
from outrider.options.groups import DeviceOptions, DraftModelOptions
from outrider.options.roles import FusedTargetRole

if TYPE_CHECKING:
    from inference.backends.eager import EagerModel
    from inference.backends.eagle import EagleModel


@dataclass(frozen=True)
class FoundHead(OfCheckpoint):
    """A FoundModel that drafts beside `target` only, whose checkpoint gives tokenizer and limits.

    called: the head's name
    directory: where the head's files are
    """

    called: str
    directory: Path
    target: EagerModel

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
        from inference.model.eagle import load_head

        begun = time.perf_counter()
        head = load_head(self.directory, self.target.decoder, sequence_length)
        capacity = sequence_length + spare
        self.target.keep_features(head.config.kept)
        model = EagleModel(head, rows=rows, capacity=capacity, max_nodes=max_nodes)
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
    from inference.backends.eager import EagerModel

    if options.draft_model is None:
        raise InvalidRequest(
            "--draft eagle needs --draft_model: the directory or hub name of an EAGLE-3 head that "
            "was made for the target"
        )
    real = target.real if isinstance(target, TimedModel) else target
    if not isinstance(real, EagerModel) or not isinstance(options, FusedTargetRole):
        raise UnsupportedModel(
            "--draft eagle reads features that a target on cpu or cuda keeps; compiled graphs keep "
            "none: serve the checkpoint itself, without --artifact"
        )
    directory = find_directory(options.draft_model, "draft")
    checkpoint = find_checkpoint(options.target_name, "target")
    return FoundHead(checkpoint, options.draft_model, directory, real)
