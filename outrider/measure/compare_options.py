"""The flags of `outrider compare`: what is compared, how texts are drafted, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Le
from pydantic import BeforeValidator, InstanceOf, model_validator

from inference.command import called
from inference.drafters.round_proposer import BestFirst, Chain
from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions, parse_flags
from inference.flags.group import FlagRule, Group, Shown
from inference.flags.values import (
    Count,
    Directory,
    Host,
    NumberList,
    Words,
    among,
    comma_separated,
)
from outrider.client.drafting import read_policy
from outrider.measure.architectures import ARCHITECTURES, GROWING, read_setting
from outrider.measure.figures import BASELINE
from outrider.measure.statistics import MIN_TEXTS
from outrider.options.draft_flags import PresetOptions, SourceOptions
from outrider.options.groups import (
    DeviceName,
    ObjectiveOptions,
    PromptOptions,
    QuantizationOptions,
    Seed,
    TargetOptions,
    read_knob,
)
from outrider.options.network import ConnectionOptions
from outrider.options.roles import RULES

NAMES = tuple(one.name for one in ARCHITECTURES)
ON_THIS_MACHINE = tuple(one.name for one in ARCHITECTURES if one.on_this_machine)
BY_PRESET = {preset: one.name for one in ARCHITECTURES for preset in one.presets}
"""Architectures by the preset that each measures."""
STEERED = tuple(one.name for one in ARCHITECTURES if one.steered)


def _policies(kind: type[Chain] | type[BestFirst]) -> BeforeValidator:
    """Reads settings of this kind."""

    def read(given: object) -> object:
        if not isinstance(given, str):
            return given
        try:
            policies = tuple(read_setting(part) for part in given.split(","))
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
        if not all(isinstance(policy, kind) for policy in policies):
            raise ValueError("a chain is such as 4, a tree such as 16x6")
        return policies

    return BeforeValidator(read)


class ComparedTexts(PromptOptions):
    """The texts that every architecture makes."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """0 is greedy"""
    max_new_tokens: Count = 48
    """tokens to make at most"""
    seed: Seed | None = 0
    """prompt i uses seed + i"""


class PairOptions(SourceOptions, QuantizationOptions, TargetOptions):
    """Draft and target of a comparison: how they are loaded, and what they cost."""

    text: ComparedTexts = ComparedTexts()
    prices: ObjectiveOptions = ObjectiveOptions()
    connection: ConnectionOptions = ConnectionOptions()


class LinkOptions(Group, title="target and link"):
    """Place of the target, and links over which it is compared."""

    target_host: Host | None = None
    """a running target (default: start one)"""
    target_device: DeviceName | None = None
    """of a target that is started (default: that of --device)"""
    draft_device: DeviceName | None = None
    """of the draft in this process (default: that of --device)"""
    emulate: Annotated[Words, Shown("PROFILE,...")] = ()
    """the target's passes take the times of this profile; several: one comparison each"""
    rtt: Annotated[NumberList, Shown("MS,...")] = (0.0, 40.0)
    """round trips to emulate, milliseconds beyond the machine's own (with --cs: 0)"""
    bandwidth: Annotated[float, Shown("MBIT")] | None = None
    """megabits a second each way (default: no limit)"""


class CompareOptions(LinkOptions, CommandOptions, title="what is compared"):
    """Ways of decoding side by side: same prompts, seeds and limits, interleaved, each against its
    own target-only run. With --cs, the curve of speed against cost.
    """

    COMMON: ClassVar = (
        *("architectures", "presets", "rtt", "emulate", "num_runs", "out", "cs"),
        *("target_model", "draft_model", "device", "prompt_text", "max_new_tokens", "temperature"),
        *("target_host", "usd_per_hour"),
    )
    RULES: ClassVar = (
        *RULES,
        FlagRule("presets", excludes="architectures", why="presets name architectures, too"),
        FlagRule(
            "target_host",
            excludes="emulate artifact target_device",
            why="they are of a target that is started here",
        ),
        FlagRule("objective", needs="cs", why="it is what --cs weighs speed against"),
    )

    architectures: Annotated[Words, among(NAMES), Shown("NAME,...")] = ()
    """those to compare (default: all that run across a link)"""
    presets: Annotated[Words, among(tuple(BY_PRESET)), Shown("NAME,...")] = ()
    """architectures by preset, each with its own setting"""
    chains: Annotated[tuple[InstanceOf[Chain], ...], _policies(Chain), Shown("N,...")] = (
        *(Chain(2), Chain(4), Chain(8)),
    )
    """chains that are compared, each an arm of its own"""
    trees: Annotated[tuple[InstanceOf[BestFirst], ...], _policies(BestFirst), Shown("NxD,...")] = (
        *(BestFirst(8, 4), BestFirst(16, 6), BestFirst(32, 8)),
    )
    """trees that are compared"""
    cs: Annotated[Words, Shown("KNOB,...")] = ()
    """the growing draft at these positions of the knob: tps, balanced, cost or 0 to 100"""
    num_runs: Count = 2
    """runs of each prompt and architecture, interleaved"""
    out: Directory | None = None
    """directory of the run: its texts, which it continues from, and the report"""
    pair: PairOptions = PairOptions()

    def __init__(self, /, **given: Any) -> None:
        """Set what presets and --cs stand for, where nothing else is given."""
        names = comma_separated(given.get("presets") or ())
        known = [name for name in names if name in BY_PRESET] if isinstance(names, tuple) else []
        meant: dict[str, Any] = {"rtt": (0.0,)} if given.get("cs") else {}
        super().__init__(**meant | _of_presets(known) | given)

    @model_validator(mode="after")
    def _can_be_measured(self) -> Self:
        if not self.rtt or not all(0 <= trip < 60_000 for trip in self.rtt) or _twice(self.rtt):
            raise ValueError(
                f"--rtt {','.join(f'{trip:g}' for trip in self.rtt)}: different milliseconds from "
                "0 to 60000 are needed"
            )
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
        if self.pair.method is None:
            raise ValueError(
                f"--draft {self.pair.draft}: a comparison needs a model that drafts; its "
                "architectures say who copies"
            )
        unused = [name for name in ("list_models", "target") if self.pair.connection.values()[name]]
        if unused:
            raise ValueError(f"--{unused[0]} does not go with a comparison")
        return self

    def check_texts(self, prompts: int) -> None:
        """Raise InvalidRequest for fewer texts than tell another architecture from target-only.

        prompts: number of prompts, each of which is run num_runs times
        """
        texts = prompts * self.num_runs
        if BASELINE in self.chosen and len(self.chosen) > 1 and texts < MIN_TEXTS:
            raise InvalidRequest(
                f"{texts} texts of each architecture are too few to tell, {MIN_TEXTS} are needed: "
                f"give more prompts, or --num_runs {-(-MIN_TEXTS // prompts)}"
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        """Architectures to run, in the order of the table."""
        across = (BASELINE, GROWING) if self.cs else set(NAMES) - set(ON_THIS_MACHINE)
        named = tuple(BY_PRESET[preset] for preset in self.presets)
        asked = self.architectures or named or across
        return tuple(name for name in NAMES if name in asked)

    @property
    def with_local(self) -> bool:
        return any(name in self.chosen for name in ON_THIS_MACHINE)


def _twice(values: Sequence[float]) -> bool:
    return len(set(values)) < len(values)


def _of_presets(names: Sequence[str]) -> dict[str, Any]:
    """The flags that these presets stand for. Raises InvalidRequest where two kinds of models would
    draft.
    """
    if not names:
        return {}
    options = [PresetOptions(preset=name) for name in names]
    kinds = sorted({one.method for one in options if one.method and not one.target_only})
    if len(kinds) > 1:
        raise InvalidRequest(
            f"--presets {','.join(names)}: one kind of model drafts in a comparison, got "
            f"{' and '.join(kinds)}"
        )
    rounds = {
        field: (read_policy(PresetOptions(preset=name)),)
        for field, name in (("chains", "classic_sd"), ("trees", "tree_sd"))
    }
    return rounds | dict(zip(("draft",), kinds, strict=False))


EXAMPLES = """Without --target_host a target is started on this machine and stopped again; draft and
target then share its cores, so forwards, acceptance and bytes carry over to other machines and
tokens/s do not. Settings: 4 is a chain of 4, 16x6 a tree of 16 nodes and depth 6.

examples:
  outrider compare                                       the pair that ships here
  outrider compare --target_model DIR --draft_model DIR  a real pair
  outrider compare --rtt 0,20,80 --out DIR \\
    --emulate llama-3.1-8b-trn1.2xlarge-computed,llama-3.1-8b-trn1.2xlarge-measured
  outrider compare --target_host HOST:PORT --draft_model DIR \\
    --tls_ca ca.pem --token_file token
  outrider compare --cs 0,25,50,75,100 --usd_per_hour 1.34 \\
    --usd_per_kwh 0.3 --usd_per_gb_up 0 --usd_per_gb_down 0.09 --draft_watts 30"""


def parse(arguments: Sequence[str] | None = None) -> CompareOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    command = called("compare", "compare_architectures.py")
    return parse_flags(CompareOptions, command, arguments, EXAMPLES)
