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
  outrider prove                                         the embedded pair
  outrider prove --target_model DIR --draft_model DIR    a real pair on this machine
  outrider prove --model NAME --device neuron            on a Neuron instance, where noise and
                                                         sampling of the device are checked first"""


class ProveOptions(
    SourceOptions,
    HourlyOptions,
    QuantizationOptions,
    TargetOptions,
    CommandOptions,
    title="check",
):
    """Check a target on this machine: texts with a draft equal the target's own at three
    temperatures, forward-pass times by nodes, and speed from a cold start.
    """

    COMMON: ClassVar = (
        *("model", "target_model", "draft_model", "artifact", "device", "dtype", "batch", "draft"),
        *("prompt_text", "chat", "max_new_tokens", "out"),
    )
    RULES: ClassVar = RULES

    prompt_text: File | None = None
    """file with one prompt a line (default: embedded prompts)"""
    chat: bool = False
    """apply the model's chat template to the prompts"""
    max_new_tokens: Count = 64
    """maximum new tokens"""
    out: Directory = "proof"
    """directory for report.json, report.md and profile.json"""

    @model_validator(mode="after")
    def _drafts_here(self) -> Self:
        if self.method is not None and not METHODS[self.method].here:
            raise ValueError(
                f"--draft {self.draft}: {self.method} drafts beside the target; this checks a "
                "draft on this machine"
            )
        return self


def parse(arguments: Sequence[str] | None = None) -> ProveOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    return parse_flags(ProveOptions, "outrider prove", arguments, EXAMPLES)
