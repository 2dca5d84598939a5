"""Flags of compare, bench, prove and recommend. Their help needs no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, Field, model_validator

from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions
from inference.flags.group import FlagRule, Metavar, flags_of
from inference.flags.values import (
    Count,
    Directory,
    File,
    ModelName,
    Name,
    NumberList,
    Seconds,
    Words,
    among,
)
from outrider.measure.arms import (
    ARCHITECTURES,
    BASELINE,
    CHAIN,
    GROWING,
    LOCAL_ARMS,
    STEERED,
    TREE,
    Choice,
    sizes,
)
from outrider.measure.sets import Item, read_file, read_lines, read_sets
from outrider.measure.statistics import MIN_TEXTS
from outrider.options.draft_flags import METHODS, PRESETS, SourceOptions
from outrider.options.groups import (
    BackendOptions,
    DeviceOptions,
    MeasureOptions,
    ObjectiveOptions,
    PriceOptions,
    QuantizationOptions,
    SamplingOptions,
    Seed,
    TargetOptions,
    read_knob,
)
from outrider.options.network import ConnectionOptions
from outrider.options.roles import RULES, ClientRole, FusedTargetRole


class RunOptions(
    SourceOptions, BackendOptions, MeasureOptions, QuantizationOptions, TargetOptions,
    CommandOptions, title="measurement",
):  # fmt: skip
    """The pair that a command measures."""

    RULES: ClassVar = RULES
    prices: PriceOptions = PriceOptions()

    @property
    def plan_settings(self) -> dict[str, Any]:
        """The values that decide what is measured."""
        return {name: one for name, one in self.values().items() if name not in _OF_THE_CALL}

    def role(self, connection: ConnectionOptions, flags: Mapping[str, Any]) -> ClientRole:
        """The options of a client with these flags, and those given here that all clients share."""
        own = flags_of(ClientRole).keys() - flags_of(ConnectionOptions).keys() - {"cs", "objective"}
        if "model" not in str(flags.get("draft", self.draft)):
            own -= {"draft_quantization"}
        stated = {name: value for name, value in self.explicit().items() if name in own}
        return ClientRole(connection=connection, **{**stated, **flags})


_OF_THE_CALL = ("out", "debug")
"""Flags that change nothing of what is measured."""


class LinkedOptions(RunOptions, title="measurement"):
    """A pair whose target is started here unless it is named, and the links to it."""

    RULES: ClassVar = (
        *RULES,
        FlagRule(
            "target_host port target",
            excludes="emulate artifact target_model",
            why="those are for a target that is started here",
        ),
    )
    emulate: Name | None = None
    """emulate forward-pass times of this profile"""
    rtt: Annotated[NumberList, Metavar("MS,...")] = (0.0,)
    """emulated round trips in ms, added to the real one"""
    bandwidth: Annotated[float, Gt(0), Metavar("MBIT")] | None = None
    """bandwidth of the emulated link each way, in Mbit/s (default: unlimited)"""
    connection: ConnectionOptions = ConnectionOptions()

    @model_validator(mode="after")
    def _can_be_emulated(self) -> Self:
        if not self.rtt or not all(0 <= trip < 60_000 for trip in self.rtt) or _twice(self.rtt):
            raise ValueError(
                f"--rtt {','.join(f'{trip:g}' for trip in self.rtt)}: different milliseconds from "
                "0 to 60000 are needed"
            )
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether the options name a running target."""
        return bool({"target", "target_host", "port"} & self.explicit().keys())


class MeasuredTexts(SamplingOptions):
    """Sampling and length of all texts."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """sampling temperature; 0 is greedy"""
    seed: Seed = 0
    """seed of the sampling noise and of --samples; text i uses seed + i"""


class ComparedTexts(MeasuredTexts):
    max_new_tokens: Count = 48
    """maximum new tokens"""


def _each_size(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        sizes(word)
    return words


class CompareOptions(LinkedOptions, title="comparison"):
    """Compare architectures on the same prompts, seeds and limits, interleaved, each against the
    target alone. With --cs, measure the curve of speed against cost.
    """

    COMMON: ClassVar = (
        *("architectures", "settings", "rtt", "emulate", "num_runs", "out", "cs"),
        *("target_model", "draft_model", "device", "prompt_text", "max_new_tokens", "temperature"),
        *("target_host", "usd_per_hour"),
    )
    RULES: ClassVar = (
        *LinkedOptions.RULES,
        FlagRule("objective", needs="cs", why="it is what --cs weighs speed against"),
    )

    architectures: Annotated[Words, among(tuple(ARCHITECTURES)), Metavar("NAME,...")] = ()
    """architectures to compare (default: all that use a link)"""
    settings: Annotated[Words, AfterValidator(_each_size), Metavar("N,NxD,...")] = Field(
        default=("2", "4", "8", "8x4", "16x6", "32x8")
    )
    """sizes of synchronous rounds, each an arm: chains of N tokens, trees of N nodes and depth D"""
    cs: Annotated[Words, Metavar("KNOB,...")] = ()
    """positions of the knob for the adaptive draft: tps, balanced, cost or 0 to 100"""
    prompt_text: File | None = None
    """file with one prompt a line (default: embedded prompts)"""
    num_runs: Count = 2
    """repetitions of each prompt and architecture"""
    rtt: Annotated[NumberList, Metavar("MS,...")] = (0.0, 40.0)
    """emulated round trips in ms, added to the real one (with --cs: 0)"""
    out: Directory | None = None
    """directory of the run, with its texts and report"""
    text: ComparedTexts = ComparedTexts()
    prices: ObjectiveOptions = ObjectiveOptions()

    def __init__(self, /, **given: Any) -> None:
        """With --cs one link is enough, where no other is given."""
        super().__init__(**({"rtt": (0.0,)} if given.get("cs") else {}) | given)

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        weights = [read_knob(knob) for knob in self.cs]
        if _twice(weights) or not all(0 <= weight <= 1 for weight in weights):
            raise ValueError(
                f"--cs {','.join(self.cs)}: different positions are needed, each tps, balanced, "
                "cost or 0 to 100"
            )
        if self.cs and not set(STEERED) & set(self.chosen):
            raise ValueError(
                f"--cs steers {', '.join(STEERED)}: name one of them in --architectures"
            )
        if self.method is None:
            raise ValueError(
                f"--draft {self.draft}: a comparison needs a model that drafts; its "
                "architectures say who copies"
            )
        return self

    @property
    def chosen(self) -> tuple[str, ...]:
        """Architectures to run, in the order of the table."""
        across = (BASELINE, GROWING) if self.cs else set(ARCHITECTURES) - set(LOCAL_ARMS)
        return tuple(name for name in ARCHITECTURES if name in (self.architectures or across))

    def choices(self) -> Iterator[Choice]:
        """Each chosen architecture, in each of its settings."""
        for name in self.chosen:
            flags = dict(PRESETS.get(ARCHITECTURES[name], {}))
            if "draft" in flags and self.method is not None:
                flags["draft"] = str(flags["draft"]).replace("model", self.method)
            settings: list[tuple[str, dict[str, Any]]] = [("", {})]
            if name in (CHAIN, TREE):
                rounds = {text: sizes(text) for text in self.settings}
                settings = [one for one in rounds.items() if ("gamma" in one[1]) == (name == CHAIN)]
            elif name in STEERED and self.cs:
                goal = {"objective": self.prices.objective} if self.prices.objective else {}
                settings = [(f"--cs {knob}", {"cs": knob, **goal}) for knob in self.cs]
            yield from (Choice(name, label, flags | more) for label, more in settings)

    def local_role(self) -> FusedTargetRole:
        """The target in this process, with a draft beside it."""
        own = flags_of(FusedTargetRole).keys() - flags_of(ConnectionOptions).keys()
        given = {name: value for name, value in self.explicit().items() if name in own}
        return FusedTargetRole(**given | {"batch": 1, "emulate": None, "rtt": None})

    def items(self) -> list[Item]:
        """The prompts. Raises InvalidRequest where they make fewer texts than tell another
        architecture from target-only.
        """
        items = read_lines(self.prompt_text)
        count = len(items) * self.num_runs
        if BASELINE in self.chosen and len(self.chosen) > 1 and count < MIN_TEXTS:
            raise InvalidRequest(
                f"{count} texts of each architecture are too few to tell, {MIN_TEXTS} are needed: "
                f"give more prompts, or --num_runs {-(-MIN_TEXTS // len(items))}"
            )
        return items


def _twice(values: tuple[float, ...] | list[float]) -> bool:
    return len(set(values)) < len(values)


class BenchOptions(LinkedOptions, title="measurement"):
    """Measure drafting methods on public prompt sets, each against the target alone. Run the same
    command again to resume an interrupted run.
    """

    COMMON: ClassVar = (
        *("set", "file", "samples", "presets", "num_runs", "rtt", "emulate", "out"),
        *("target_model", "draft_model", "device", "max_new_tokens", "temperature", "target_host"),
    )
    RULES: ClassVar = (
        *LinkedOptions.RULES,
        FlagRule("file", excludes="set", why="both name prompts"),
        FlagRule("presets", excludes="draft", why="both choose drafting methods"),
    )

    sets: Annotated[Words, Metavar("NAME,...")] = Field(default=("small",), alias="set")
    """prompt sets"""
    file: File | None = None
    """JSON lines file of prompts"""
    samples: Count | None = None
    """number of prompts of each kind (default: all)"""
    presets: Annotated[Words, among(PRESETS), Metavar("NAME,...")] = ()
    """presets to measure (default: the method of --draft)"""
    num_runs: Count = 1
    """repetitions of each prompt and drafting method"""
    out: Directory = "bench"
    """directory of the run, with its texts and report"""
    text: MeasuredTexts = MeasuredTexts()

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """The flags of a client by the name of each drafting method."""
        return {name: PRESETS[name] for name in self.presets} or {self.draft: {}}

    def items(self) -> list[Item]:
        """The prompts, kinds in turn."""
        if self.file is not None:
            return read_file(Path(self.file), self.samples)
        return read_sets(self.sets, self.samples, self.text.seed)


class ProveOptions(RunOptions, title="check"):
    """Check a target on this machine: texts with a draft equal the target's own at three
    temperatures, forward-pass times by nodes, and speed from a cold start.
    """

    COMMON: ClassVar = (
        *("model", "target_model", "draft_model", "artifact", "device", "dtype", "batch", "draft"),
        *("prompt_text", "max_new_tokens", "out"),
    )

    prompt_text: File | None = None
    """file with one prompt a line (default: embedded prompts)"""
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


class RecommendOptions(CommandOptions, title="drafting"):
    """Find the best draft for this machine and a target: run each fitting draft, n-gram copying
    alone, and no draft, in turn. The last line is the command to use.
    """

    COMMON: ClassVar = (
        *("draft_model", "download", "seconds", "max_new_tokens", "out", "device", "threads"),
        *("target_host", "target", "tls_ca", "token_file", "usd_per_hour"),
    )
    RULES: ClassVar = RULES
    draft_model: ModelName | None = None
    """further directories and GGUF files to search for drafts: A,B"""
    download: bool = False
    """offer to download the two smallest published drafts that fit"""
    seconds: Seconds = 120.0
    """maximum time for loading and measuring"""
    max_new_tokens: Count = 128
    """maximum new tokens of a text"""
    out: Directory | None = None
    """directory for the report"""
    connection: ConnectionOptions = ConnectionOptions()
    device: DeviceOptions = DeviceOptions()
    prices: PriceOptions = PriceOptions()

    def of_run(self, **flags: Any) -> dict[str, Any]:
        """Flags of `outrider run`: those of a way of drafting, and those given here."""
        return {
            **self.connection.explicit(),
            **self.device.explicit(),
            **self.prices.explicit(),
            **flags,
        }


class RunsOptions(CommandOptions, title="general"):
    """Run the experiments and sweeps of a file, and store options and results of each."""

    BARE: ClassVar = "file"
    file: File
    """YAML file of runs, or XML of an AutoDraft experiment (docs/runs.md)"""
    out: Directory = "runs"
    """directory for the results, with a subdirectory for each run"""
    dry_run: bool = False
    """list the runs of the file without running them"""
