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
  outrider bench --yes                                    the pair and the prompts that ship here
  outrider bench --yes --target_model DIR --draft_model DIR --out real
  outrider bench --set small --presets hybrid,suffix --rtt 40 --samples 5
  outrider bench --target_host HOST --draft_model DIR --file prompts.jsonl --out server
  outrider bench compare bench real                       two runs, text by text"""


class BenchTexts(SamplingOptions):
    """Parameters of all texts."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """0 is greedy"""
    seed: Seed = 0
    """text i of a run uses seed + i; samples of a set are drawn by it, too"""


class BenchOptions(
    PresetOptions,
    BackendOptions,
    MeasureOptions,
    QuantizationOptions,
    TargetOptions,
    CommandOptions,
    title="what is measured",
):
    """Measure ways of drafting on prompts that others can have, each text beside target-only's. A
    run that was ended goes on when the same command is given again.
    """

    COMMON: ClassVar = (
        *("set", "file", "samples", "presets", "num_runs", "rtt", "emulate", "out"),
        *("target_model", "draft_model", "device", "max_new_tokens", "temperature", "target_host"),
    )
    RULES: ClassVar = (
        *RULES,
        FlagRule("file", excludes="set", why="both name prompts"),
        FlagRule("no_sandbox", needs="run_code"),
        FlagRule("presets", excludes="preset", why="both name ways of drafting"),
        FlagRule(
            "target target_host port",
            excludes="emulate artifact target_model fresh",
            why="they are of a target that is started here",
        ),
    )

    sets: Annotated[Words, Shown("NAME,...")] = Field(default=("small",), alias="set")
    """sets of prompts"""
    file: File | None = None
    """prompts of this file: a JSON object a line"""
    samples: Count | None = None
    """prompts of each kind (default: all)"""
    presets: Annotated[Words, among(PRESETS), Shown("NAME,...")] = ()
    """ways of drafting by preset, each beside target-only (default: as the flags say)"""
    run_code: bool = False
    """run code that the models write, to score it (needs bubblewrap)"""
    no_sandbox: bool = False
    """run it without bubblewrap, as any program of yours"""
    num_runs: Count = 1
    """texts of each prompt and drafting method"""
    fresh: bool = False
    """begin without kept times, and start both ends anew for each repetition"""
    rtt: Annotated[float, Ge(0), Shown("MS")] = 0.0
    """round trip to emulate, beyond the machine's own"""
    bandwidth: Annotated[float, Gt(0), Shown("MBIT")] | None = None
    """megabits a second each way of the emulated link (default: no limit)"""
    emulate: Name | None = None
    """the target's passes take the times of this profile"""
    yes: bool = False
    """do not ask before a run that names no prompts"""
    out: Directory = "bench"
    """directory of the run: its texts, which it goes on from, and the summary"""
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


class PairingOptions(CommandOptions, title="what is compared"):
    """Compare two runs of `outrider bench`: speeds of the same texts, and what differs in their
    settings.
    """

    BARE: ClassVar = "before after"

    before: Directory
    """directory of a run"""
    after: Directory
    """directory of the run whose speeds are divided by those of the other"""
    as_json: File | None = Field(default=None, alias="json")
    """write all figures to this file"""


def parse(arguments: Sequence[str]) -> BenchOptions | PairingOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    if arguments[:1] == ["compare"]:
        return parse_flags(PairingOptions, "outrider bench compare", arguments[1:])
    return parse_flags(BenchOptions, "outrider bench", arguments, EXAMPLES)
