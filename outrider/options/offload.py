"""The flag of a target that is larger than memory."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from outrider.options.groups import TargetOptions


class OffloadOptions(TargetOptions, title="models and devices"):
    """Where the layers of a target are."""

    layer_offload: Literal["host", "disk"] | None = None
    """keep layers in host memory (for cuda) or in the checkpoint's files, and copy each to the
    device while the one before computes: for a target larger than memory"""

    @model_validator(mode="after")
    def _layers_are_here(self) -> Self:
        if self.layer_offload is not None and (self.artifact or self.device.startswith("neuron")):
            other = "--artifact" if self.artifact else f"--device {self.device}"
            raise ValueError(
                f"--layer_offload is for a checkpoint on cpu or cuda: leave it out with {other}"
            )
        return self
