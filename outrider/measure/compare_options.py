"""The flags of `outrider compare`: what is compared, how texts are drafted, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Le
from pydantic import BeforeValidator, InstanceOf, model_validator

from inference.drafters.round_proposer import BestFirst, Chain, Policy
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


def _read_settings(given: object) -> object:
    """The policies of a list such as 4,16x6; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return tuple(read_setting(part) for part in given.split(","))
    except InvalidRequest as error:
        raise ValueError(str(error)) from error


class ComparedTexts(PromptOptions):
    """The texts that every architecture makes."""

    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """sampling temperature; 0 is greedy"""
    max_new_tokens: Count = 48
    """maximum new tokens"""
    seed: Seed | None = 0
    """seed of the sampling noise; prompt i uses seed + i"""


class PairOptions(SourceOptions, QuantizationOptions, TargetOptions):
    """Draft and target of a comparison: how they are loaded, and what they cost."""

    text: ComparedTexts = ComparedTexts()
    prices: ObjectiveOptions = ObjectiveOptions()
    connection: ConnectionOptions = ConnectionOptions()


class LinkOptions(Group, title="target and link"):
    """Place of the target, and links over which it is compared."""

    target_host: Host | None = None
    """address of a running target (default: start one here)"""
    target_device: DeviceName | None = None
    """device of the started target (default: --device, which is also the draft's)"""
    emulate: Annotated[Words, Shown("PROFILE,...")] = ()
    """emulate forward-pass times of these profiles, with a comparison for each"""
    rtt: Annotated[NumberList, Shown("MS,...")] = (0.0, 40.0)
    """emulated round trips in ms, added to the real one (with --cs: 0)"""
    bandwidth: Annotated[float, Shown("MBIT")] | None = None
    """bandwidth of the emulated link each way, in Mbit/s (default: unlimited)"""


class CompareOptions(LinkOptions, CommandOptions, title="comparison"):
    """Compare architectures on the same prompts, seeds and limits, interleaved, each against the
    target alone. With --cs, measure the curve of speed against cost.
    """

    COMMON: ClassVar = (
        *("architectures", "presets", "rtt", "emulate", "num_runs", "out", "cs"),
        *("target_model", "draft_model", "device", "prompt_text", "max_new_tokens", "temperature"),
        *("target_host", "usd_per_hour"),
    )
    RULES: ClassVar = (
        *RULES,
        FlagRule("presets", excludes="architectures", why="both choose architectures"),
        FlagRule(
            "target_host",
            excludes="emulate artifact target_device",
            why="those are for a target that is started here",
        ),
        FlagRule("objective", needs="cs", why="it is what --cs weighs speed against"),
    )

    architectures: Annotated[Words, among(NAMES), Shown("NAME,...")] = ()
    """architectures to compare (default: all that use a link)"""
    presets: Annotated[Words, among(tuple(BY_PRESET)), Shown("NAME,...")] = ()
    """architectures by preset, with the preset's settings"""
    settings: Annotated[
        tuple[InstanceOf[Chain] | InstanceOf[BestFirst], ...],
        BeforeValidator(_read_settings),
        Shown("N,NxD,..."),
    ] = (
        *(Chain(2), Chain(4), Chain(8)),
        *(BestFirst(8, 4), BestFirst(16, 6), BestFirst(32, 8)),
    )
    """sizes of synchronous rounds, each an arm: chains of N tokens, trees of N nodes and depth D"""
    cs: Annotated[Words, Shown("KNOB,...")] = ()
    """positions of the knob for the adaptive draft: tps, balanced, cost or 0 to 100"""
    num_runs: Count = 2
    """repetitions of each prompt and architecture"""
    out: Directory | None = None
    """directory of the run, with its texts and report"""
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
        if self.pair.connection.target:
            raise ValueError("--target does not go with a comparison: give --target_host")
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
    def chains(self) -> list[Policy]:
        return [policy for policy in self.settings if isinstance(policy, Chain)]

    @property
    def trees(self) -> list[Policy]:
        return [policy for policy in self.settings if isinstance(policy, BestFirst)]

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
    kinds = sorted({one.method for one in options if one.method})
    if len(kinds) > 1:
        raise InvalidRequest(
            f"--presets {','.join(names)}: one kind of model drafts in a comparison, got "
            f"{' and '.join(kinds)}"
        )
    rounds = tuple(read_policy(PresetOptions(preset=name)) for name in ("classic_sd", "tree_sd"))
    return {"settings": rounds} | dict(zip(("draft",), kinds, strict=False))


EXAMPLES = """Without --target_host a target is started on this machine. Draft and target then share
its cores: forward passes, acceptance and bytes carry over to other machines, tokens/s do not.

examples:
  outrider compare                                       the embedded pair
  outrider compare --target_model DIR --draft_model DIR  a real pair
  outrider compare --rtt 0,20,80 --out DIR \\
    --emulate llama-3.1-8b-trn1.2xlarge-computed,llama-3.1-8b-trn1.2xlarge-measured
  outrider compare --target_host HOST:PORT --draft_model DIR \\
    --tls_ca ca.pem --token_file token
  outrider compare --cs 0,25,50,75,100 --usd_per_hour 1.34 \\
    --usd_per_kwh 0.3 --usd_per_gb_up 0 --usd_per_gb_down 0.09 --draft_watts 30"""


def parse(arguments: Sequence[str] | None = None) -> CompareOptions:
    """The options of a command line. Prints help or an error in one line, and exits."""
    return parse_flags(CompareOptions, "outrider compare", arguments, EXAMPLES)
