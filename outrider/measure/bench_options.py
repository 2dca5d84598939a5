"""Flags of `outrider bench` and of `outrider bench compare`. Their help needs no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le
from pydantic import Field

from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import FlagRule, Shown, flags_of
from inference.flags.values import Count, Directory, File, Name, Words, among
from outrider.measure.sets import Item, read_file, read_sets
from outrider.options.draft_flags import PRESETS, PresetOptions
from outrider.options.groups import (
    BackendOptions,
    GoalOptions,
    MeasureOptions,
    QuantizationOptions,
    SamplingOptions,
    Seed,
    TargetOptions,
)
from outrider.options.network import ConnectionOptions
from outrider.options.roles import RULES, ClientRole

EXAMPLES = """examples:
  outrider bench --yes                                    the embedded pair and prompts
  outrider bench --yes --target_model DIR --draft_model DIR --out real
  outrider bench --set small --presets hybrid,suffix --rtt 40 --samples 5
  outrider bench --target_host HOST --draft_model DIR --file prompts.jsonl --out server
  outrider bench compare bench real                       compare two runs, text by text"""


class BenchTexts(SamplingOptions):
    """Parameters of all texts."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """sampling temperature; 0 is greedy"""
    seed: Seed = 0
    """seed of the sampling noise and of --samples; text i uses seed + i"""


class BenchOptions(
    PresetOptions,
    BackendOptions,
    MeasureOptions,
    QuantizationOptions,
    TargetOptions,
    CommandOptions,
    title="measurement",
):
    """Measure drafting methods on public prompt sets, each against the target alone. Run the same
    command again to resume an interrupted run.
    """

    COMMON: ClassVar = (
        *("set", "file", "samples", "presets", "num_runs", "rtt", "emulate", "out"),
        *("target_model", "draft_model", "device", "max_new_tokens", "temperature", "target_host"),
    )
    RULES: ClassVar = (
        *RULES,
        FlagRule("file", excludes="set", why="both name prompts"),
        FlagRule("presets", excludes="preset", why="both choose drafting methods"),
        FlagRule(
            "target target_host port",
            excludes="emulate artifact target_model fresh",
            why="those are for a target that is started here",
        ),
    )

    sets: Annotated[Words, Shown("NAME,...")] = Field(default=("small",), alias="set")
    """prompt sets"""
    file: File | None = None
    """JSON lines file of prompts"""
    samples: Count | None = None
    """number of prompts of each kind (default: all)"""
    presets: Annotated[Words, among(PRESETS), Shown("NAME,...")] = ()
    """presets to measure (default: the method of the other flags)"""
    run_code: bool = False
    """run generated code in bubblewrap to score it"""
    num_runs: Count = 1
    """repetitions of each prompt and drafting method"""
    fresh: bool = False
    """discard measured times and restart both sides before each repetition"""
    rtt: Annotated[float, Ge(0), Shown("MS")] = 0.0
    """emulated round trip in ms, added to the real one"""
    bandwidth: Annotated[float, Gt(0), Shown("MBIT")] | None = None
    """bandwidth of the emulated link each way, in Mbit/s (default: unlimited)"""
    emulate: Name | None = None
    """emulate forward-pass times of this profile"""
    yes: bool = False
    """do not ask for confirmation of a run without --set or --file"""
    out: Directory = "bench"
    """directory of the run, with its texts and summary"""
    text: BenchTexts = BenchTexts()
    goal: GoalOptions = GoalOptions()
    connection: ConnectionOptions = ConnectionOptions()

    @property
    def elsewhere(self) -> bool:
        """The target is not started here."""
        return bool({"target", "target_host", "port"} & self.stated().keys())

    @property
    def settings(self) -> dict[str, Any]:
        """The values that decide what is measured."""
        return {name: value for name, value in self.values().items() if name not in _OF_THE_CALL}

    @property
    def names_prompts(self) -> bool:
        """Whether the user chose the prompts."""
        return bool({"set", "file"} & self.stated().keys())

    def items(self) -> list[Item]:
        """The prompts, kinds in turn."""
        if self.file is not None:
            return read_file(Path(self.file), self.samples)
        return read_sets(self.sets, self.samples, self.text.seed)

    def clients(self, connection: ConnectionOptions) -> Iterator[tuple[str, ClientRole]]:
        """Yield the ways of drafting, each with its name."""
        own = flags_of(ClientRole).keys() - flags_of(ConnectionOptions).keys()
        for preset in self.presets or (self.preset,):
            stated = self.but(presets=(), preset=preset).stated()
            given = {name: value for name, value in stated.items() if name in own}
            yield preset or self.draft, ClientRole(connection=connection, **given)


_OF_THE_CALL = ("out", "yes", "debug")


class PairingOptions(CommandOptions, title="comparison"):
    """Compare the speeds of the same texts in two runs of `outrider bench`, and their settings."""

    BARE: ClassVar = "before after"

    before: Directory
    """directory of the earlier run"""
    after: Directory
    """directory of the later run; its speeds are divided by those of the earlier"""
    as_json: File | None = Field(default=None, alias="json")
    """JSON file for all figures"""


def parse(arguments: Sequence[str]) -> BenchOptions | PairingOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    if arguments[:1] == ["compare"]:
        return parse_flags(PairingOptions, "outrider bench compare", arguments[1:])
    return parse_flags(BenchOptions, "outrider bench", arguments, EXAMPLES)
