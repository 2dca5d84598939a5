"""Flags of `outrider prove`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import model_validator

from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.values import Count, Directory, File
from outrider.options.draft_flags import METHODS, SourceOptions
from outrider.options.groups import HourlyOptions, QuantizationOptions, TargetOptions
from outrider.options.roles import RULES

EXAMPLES = """examples:
  outrider prove                                         the pair that ships here
  outrider prove --target_model DIR --draft_model DIR    a real pair on this machine
  outrider prove --model NAME --device neuron            on a Neuron instance: noise and choices of
                                                         the device first, then the same"""


class ProveOptions(
    SourceOptions,
    HourlyOptions,
    QuantizationOptions,
    TargetOptions,
    CommandOptions,
    title="what is proved",
):
    """Prove a target on this machine: texts with a draft equal target-only's at three temperatures,
    times by nodes, speed from a first start. One report, and a profile of its times.
    """

    COMMON: ClassVar = (
        *("model", "target_model", "draft_model", "artifact", "device", "dtype", "batch", "draft"),
        *("prompt_text", "chat", "max_new_tokens", "out"),
    )
    RULES: ClassVar = RULES

    prompt_text: File | None = None
    """one prompt a line (default: a few that ship here)"""
    chat: bool = False
    """apply the model's chat template to the prompts"""
    max_new_tokens: Count = 64
    """maximum new tokens of a text"""
    out: Directory = "proof"
    """write report.json, report.md and profile.json there"""

    @model_validator(mode="after")
    def _drafts_here(self) -> Self:
        if self.method is not None and not METHODS[self.method].here:
            raise ValueError(
                f"--draft {self.draft}: {self.method} drafts beside the target; a draft of this "
                "machine is proved"
            )
        return self


def parse(arguments: Sequence[str] | None = None) -> ProveOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    return parse_flags(ProveOptions, "outrider prove", arguments, EXAMPLES)
