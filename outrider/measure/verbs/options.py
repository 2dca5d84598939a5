"""Flags of compare, bench, prove, recommend and runs, importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from annotated_types import Ge, Le
from pydantic import model_validator

from inference.flags.command_line import CommandOptions
from inference.flags.group import FlagRule, Metavar, flags_of
from inference.flags.values import (
    Count,
    Directory,
    File,
    ModelName,
    Name,
    NumberList,
    Words,
    among,
)
from outrider.measure.run import ARCHITECTURES, BASELINE, LOCAL_ARMS
from outrider.measure.sets import Item, read_lines, read_set
from outrider.options.draft_flags import PRESETS, SourceOptions
from outrider.options.groups import (
    RULES,
    BackendOptions,
    DeviceOptions,
    MeasureOptions,
    PriceOptions,
    QuantizationOptions,
    SamplingOptions,
    Seed,
    TargetOptions,
)
from outrider.options.network import ConnectionOptions
from outrider.options.roles import ClientRole, DraftRole, FusedTargetRole

Flags: TypeAlias = Mapping[str, Any]
"""Values by flag name."""


class RunOptions(
    PriceOptions, SourceOptions, BackendOptions, MeasureOptions, QuantizationOptions, TargetOptions,
    CommandOptions, title="measurement",
):  # fmt: skip
    """Flags for the models that a command measures."""

    RULES: ClassVar = RULES

    @property
    def plan_settings(self) -> dict[str, Any]:
        """The flags that affect the results."""
        values = self.values()
        del values["out"], values["debug"]
        return values

    def role(self, connection: ConnectionOptions, flags: Flags) -> ClientRole:
        """Return a client's options: these flags, and the command's flags that apply to clients."""
        of_place = flags_of(ConnectionOptions).keys()
        client_flags = flags_of(ClientRole).keys() - of_place - {"preset"}
        if "model" not in str(flags.get("draft", self.draft)):
            client_flags -= {"draft_quantization"}
        place, stated = connection.explicit(of_place), self.explicit(client_flags)
        return ClientRole(**{**place, **stated, **flags})


class MeasuredTexts(SamplingOptions):
    """Sampling and length of all outputs."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """sampling temperature; 0 is greedy"""
    seed: Seed = 0
    """seed of the sampling noise; prompt i uses seed + i"""


class LinkedOptions(RunOptions, MeasuredTexts, ConnectionOptions, title="measurement"):
    """Flags of the target (started locally unless named), the draft, and the link between them."""

    RULES: ClassVar = (
        *RULES,
        FlagRule(
            "target_host port target",
            excludes="emulate artifact target_model",
            why="those are for a target that is started here",
        ),
    )
    emulate: Name | None = None
    """profile whose forward-pass times the target emulates"""
    rtt: Annotated[NumberList, Metavar("MS,...")] = (0.0,)
    """emulated round-trip times in ms, each added to the real round trip"""
    num_runs: Count = 1
    """repetitions of each prompt and arm"""

    @model_validator(mode="after")
    def _can_be_emulated(self) -> Self:
        different = len(set(self.rtt)) == len(self.rtt) > 0
        if not different or not all(0 <= trip < 60_000 for trip in self.rtt):
            raise ValueError(
                f"--rtt {','.join(f'{trip:g}' for trip in self.rtt)}: different milliseconds from "
                "0 to 60000 are needed"
            )
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether the flags name a target that is already running."""
        return bool({"target", "target_host", "port"} & self.explicit().keys())


class CompareOptions(LinkedOptions, title="comparison"):
    """Compare architectures on the same prompts, seeds and limits, interleaved, each against the
    target alone. Run the same command again to resume an interrupted run.
    """

    COMMON: ClassVar = (
        *("architectures", "rtt", "emulate", "num_runs", "out", "target_model", "draft_model"),
        *("device", "prompt_text", "max_new_tokens", "temperature", "target_host", "usd_per_hour"),
    )

    architectures: Annotated[Words, among(tuple(ARCHITECTURES)), Metavar("NAME,...")] = ()
    """architectures to compare with target-only (default: all that use a link)"""
    prompt_text: File | None = None
    """file with one prompt per line (default: embedded prompts)"""
    num_runs: Count = 2
    """repetitions of each prompt and arm"""
    rtt: Annotated[NumberList, Metavar("MS,...")] = (0.0, 40.0)
    """emulated round-trip times in ms, each added to the real round trip"""
    out: Directory | None = None
    """directory for the run's outputs and report"""
    max_new_tokens: Count = 48
    """maximum new tokens"""

    @model_validator(mode="after")
    def _needs_a_model(self) -> Self:
        if self.method is None:
            raise ValueError(
                f"--draft {self.draft}: a comparison needs a kind of draft model; --architectures "
                "selects who copies"
            )
        return self

    @property
    def _selected(self) -> set[str]:
        return {BASELINE, *(self.architectures or ARCHITECTURES.keys() - {*LOCAL_ARMS})}

    @property
    def arms(self) -> dict[str, Flags]:
        """The client's flags for each selected architecture that uses a link, by name."""
        presets = {name: PRESETS.get(preset, {}) for name, preset in ARCHITECTURES.items()}
        return {
            name: {**flags, "draft": flags["draft"].replace("model", self.method)}
            for name, flags in presets.items()
            if flags and name in self._selected
        }

    @property
    def in_process(self) -> list[str]:
        """Selected architectures that run the target in this process."""
        return [name for name in LOCAL_ARMS if name in self._selected]

    def local_role(self) -> FusedTargetRole:
        """Return the options of a target in this process with a draft on the same device."""
        role_flags = flags_of(FusedTargetRole).keys() - flags_of(ConnectionOptions).keys()
        return FusedTargetRole(
            **self.explicit(role_flags) | {"batch": 1, "emulate": None, "rtt": None}
        )

    def items(self) -> list[Item]:
        """Read the prompts of the run."""
        return read_lines(self.prompt_text)


class BenchOptions(LinkedOptions, title="measurement"):
    """Measure drafting methods on a set of prompts, each against the target alone. Run the same
    command again to resume an interrupted run.
    """

    COMMON: ClassVar = (
        *("file", "samples", "preset", "num_runs", "rtt", "emulate", "out"),
        *("target_model", "draft_model", "device", "max_new_tokens", "temperature", "target_host"),
    )
    RULES: ClassVar = (
        *LinkedOptions.RULES,
        FlagRule("preset", excludes="draft", why="both choose drafting methods"),
    )

    file: File | None = None
    """JSON lines file of prompts (default: the small bundled set)"""
    samples: Count | None = None
    """number of prompts of each kind (default: all)"""
    preset: Annotated[Words, among(PRESETS), Metavar("NAME,...")] = ()
    """presets to measure (default: the method of --draft)"""
    out: Directory = "bench"
    """directory for the run's outputs and report"""

    @property
    def arms(self) -> dict[str, Flags]:
        """The client's flags for each drafting method, by name."""
        drafted: dict[str, Flags] = {name: PRESETS[name] for name in self.preset}
        return {BASELINE: PRESETS["vanilla"], **(drafted or {self.draft: {}})}

    def items(self) -> list[Item]:
        """Read the prompts, alternating between kinds."""
        return read_set(None if self.file is None else Path(self.file), self.samples)


class ProveOptions(RunOptions, title="check"):
    """Check a target on this machine: that its output with a draft equals its own at three
    temperatures, its forward-pass times by nodes, and its speed from a cold start.
    """

    COMMON: ClassVar = (
        *("model", "target_model", "draft_model", "artifact", "device", "dtype", "batch", "draft"),
        *("prompt_text", "max_new_tokens", "out"),
    )

    prompt_text: File | None = None
    """file with one prompt per line (default: embedded prompts)"""
    max_new_tokens: Count = 64
    """maximum new tokens"""
    out: Directory = "proof"
    """directory for report.json, report.md and profile.json"""

    @model_validator(mode="after")
    def _drafts_here(self) -> Self:
        self.role(ConnectionOptions(), {})
        return self


class RecommendOptions(
    DeviceOptions, PriceOptions, ConnectionOptions, CommandOptions, title="drafting"
):
    """Find the best draft for this machine and a target: run each fitting draft, n-gram copying
    alone, and no draft, in turn. The last line is the command to use.
    """

    COMMON: ClassVar = (
        *("draft_model", "max_new_tokens", "out", "device", "threads"),
        *("target_host", "target", "tls_ca", "token_file", "usd_per_hour"),
    )
    RULES: ClassVar = RULES
    draft_model: ModelName | None = None
    """further directories and GGUF files to search for drafts, as A,B"""
    max_new_tokens: Count = 48
    """maximum new tokens of each output"""
    out: Directory | None = None
    """directory for the report"""

    def of_run(self, flags: Flags) -> dict[str, Any]:
        """Return the flags of `outrider run`: these drafting flags, and the command's own."""
        own = {*flags_of(ConnectionOptions), *flags_of(DeviceOptions), *flags_of(PriceOptions)}
        return self.explicit(own) | {**flags}

    def role(self, connection: ConnectionOptions, flags: Flags) -> ClientRole:
        """Return a client's options with these flags, on the command's own connection."""
        return DraftRole(**self.of_run(flags))


class RunsOptions(CommandOptions, title="general"):
    """Run the experiments and sweeps of a file, and store the options and results of each run."""

    BARE: ClassVar = "file"
    file: File
    """YAML file of runs, or XML of an AutoDraft experiment (docs/runs.md)"""
    out: Directory = "runs"
    """directory for the results, with a subdirectory for each run"""
    dry_run: bool = False
    """list the runs of the file without running them"""
