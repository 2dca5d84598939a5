"""Groups of flags about models, texts and prices. outrider/options/roles.py combines groups into
roles; draft_flags.py and network.py have further ones.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, Field, model_validator

from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions
from inference.flags.group import Also, Group, Shown
from inference.flags.values import (
    Amount,
    Count,
    Directory,
    File,
    ModelName,
    Name,
    Share,
    Usd,
    Watts,
)
from inference.sampling import CANDIDATES, LEAST_TOP_P, SEED_BITS, SamplingParams

DEVICES = ("auto", "cpu", "cuda", "neuron", "neuron-legacy")


def is_device(name: str) -> bool:
    """Whether the name can be a --device: one of DEVICES, or cuda:N."""
    return name in DEVICES or re.fullmatch(r"cuda:\d{1,3}", name) is not None


def _device(name: str) -> str:
    if not is_device(name):
        raise ValueError(f"one of {', '.join(DEVICES)} or cuda:N is needed")
    return name


KNOB = {"tps": 0.0, "balanced": 0.5, "cost": 1.0}
"""Named positions of --cs, as weights of cost against speed."""


def read_knob(position: str) -> float:
    """The weight that a position of --cs names. Raises InvalidRequest for anything else."""
    if position in KNOB:
        return KNOB[position]
    try:
        return float(position) / 100
    except ValueError as error:
        words = f"--cs is tps, balanced, cost or 0 to 100: got {position!r}"
        raise InvalidRequest(words) from error


def _knob(position: str) -> str:
    if not 0 <= read_knob(position) <= 1:
        raise ValueError("tps, balanced, cost or 0 to 100 is needed")
    return position


DeviceName: TypeAlias = Annotated[str, AfterValidator(_device), Shown("DEVICE")]
KnobPosition: TypeAlias = Annotated[str, AfterValidator(_knob), Shown("KNOB")]
Seed: TypeAlias = Annotated[int, Ge(0), Lt(2**SEED_BITS)]
Precision = Literal["float32", "bfloat16", "float16"]
PrecisionChoice: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"] | None,
    AfterValidator(lambda given: None if given == "auto" else given),
]
"""A Precision; None, also for auto, where outrider/models/precision.py picks one."""

Quantization = Literal["int8", "int4"]
Objective = Literal[
    "total_cost", "api_cost", "energy_total", "draft_energy", "target_energy", "latency"
]


class GeneralOptions(CommandOptions, title="general"):
    COMMON: ClassVar[tuple[str, ...]] = ()
    """Flags that most people need, in the order of a verb's help."""

    config: File | None = None
    """read options from this YAML file; the command line and OUTRIDER_... come before it"""
    print_config: bool = False
    """print every value and where it comes from, as a file for --config, and end"""


class ModelOptions(Group, title="models and devices"):
    model: ModelName | None = None
    """model directory or hub name (default: the embedded model of the role)"""


class DraftModelOptions(ModelOptions):
    draft_model: ModelName | None = None
    """--model for the draft alone"""

    @property
    def draft_name(self) -> str | None:
        return self.draft_model or self.model


class ReductionOptions(DraftModelOptions, title="models and devices"):
    """The part of a draft's checkpoint that is kept: bits of its matrices, rows of its head."""

    draft_quantization: Quantization | None = None
    """round the draft's matrices to 8 or 4 bits, on cpu or cuda (docs/drafts.md)"""
    draft_head_tokens: Annotated[int, Ge(64)] | None = None
    """the draft guesses only among the N lowest ids of its vocabulary, which are the frequent ones
    in most tokenizers"""


class TargetModelOptions(ModelOptions):
    target_model: ModelName | None = None
    """--model for the target alone"""

    @property
    def target_name(self) -> str | None:
        return self.target_model or self.model


class DeviceOptions(Group, title="models and devices"):
    """The device of a model, and the way in which it is loaded."""

    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N, neuron or neuron-legacy; auto takes CUDA where there is one"""
    dtype: PrecisionChoice = None
    """precision (default: auto, which is float32 for the embedded pair, else the checkpoint's own,
    or what was measured to be quicker on this CPU, as docs/drafts.md says)"""
    threads: Count | None = None
    """CPU threads (default: one for small models, else torch's choice)"""
    sequence_length: Count | None = None
    """prompt and output together (default: the smaller of 2048 and the model's limit)"""


class BatchOptions(Group, title="models and devices"):
    batch: Annotated[Count, Also("rows")] = 4
    """texts at once: rows of the target, prompts of a file made at the same time"""


class BackendOptions(Group, title="models and devices"):
    backend: Literal["outrider", "transformers"] | None = None
    """what computes a checkpoint on cpu or cuda: our decoder, or the transformers library (default:
    the library where our decoder does not know the architecture; docs/models.md)"""


def backend_of(options: Group) -> str | None:
    """The backend of a checkpoint; None where the options leave it open."""
    return options.backend if isinstance(options, BackendOptions) else None


class TargetOptions(BatchOptions, DeviceOptions, TargetModelOptions):
    """The source of a target model in this process, and the largest tree that it takes."""

    artifact: Directory | None = None
    """serve this compiled target (outrider compile) in place of a model"""
    max_tree_nodes: Count = 64
    """largest tree taken, its root included"""


class OffloadOptions(TargetOptions, title="models and devices"):
    """The place of a target's layers."""

    layer_offload: Literal["host", "disk"] | None = None
    """keep layers in host memory (for cuda) or in the checkpoint's files, and copy each to the
    device while the one before computes: for a target larger than memory"""


class LegacyOptions(TargetOptions):
    """Options of a target that may also run on --device neuron-legacy."""

    tensor_parallel: Annotated[Count, Also("tp_degree")] = 2
    """--device neuron-legacy: NeuronCores that share the target"""


class MeasureOptions(Group, title="models and devices"):
    measure_first: bool = False
    """measure all times before the first text; otherwise a target measures while nobody asks, and a
    draft only for a moment"""


class EmulationOptions(Group, title="models and devices"):
    """The device and the distance that a target emulates."""

    emulate: Name | None = None
    """the model chooses, but each forward pass takes the time of this profile; reports are marked
    as emulated (an unknown name lists the profiles)"""
    rtt: Annotated[float, Gt(0), Le(10_000), Shown("MS")] | None = None
    """round trip of an emulated link in front of an emulated target, in milliseconds"""


class SamplingOptions(Group, title="text"):
    """The sampling and the length of texts, and the way in which they are shown."""

    max_new_tokens: Annotated[Count, Also("max_tokens")] = 128
    """maximum number of new tokens"""
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None
    """0 is greedy (default: 0; for the embedded pair 0.8, and a text ends after its function)"""
    top_p: Annotated[float, Ge(0), Le(1)] = 1.0
    """1 is off; 0 leaves the most likely token"""
    top_k: Annotated[int, Ge(0), Le(CANDIDATES)] = 0
    """0 is off"""
    seed: Seed | None = None
    """prompt i uses seed + i (default: random, printed)"""
    color: Literal["auto", "always", "never"] = "auto"
    """mark in the text what was guessed; auto: on a terminal, unless NO_COLOR is set"""

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        SamplingParams(self.temperature or 0.0, self.top_k, self.top_p or LEAST_TOP_P)
        return self


class PromptOptions(SamplingOptions):
    """The prompts from which texts are made."""

    prompt: str | None = None
    """text to go on with, - for standard input; the tokenizer's beginning-of-text token is put in
    front where it defines one"""
    prompt_text: Annotated[File, Also("prompt_file")] | None = None
    """one prompt a line, - for standard input; --batch of them at once"""
    chat: bool = False
    """apply the model's chat template to the prompt"""
    json_schema: File | None = Field(default=None, alias="schema")
    """the text is JSON that keeps to the JSON schema in this file"""
    regex: str | None = None
    """the text matches this regular expression as a whole"""


class TextOptions(PromptOptions):
    """The prompts from which texts are made, and the reports on them."""

    as_json: bool = Field(default=False, alias="json")
    """one JSON object a prompt on stdout, and nothing else there"""
    profile: Directory | None = None
    """write outrider-profile.csv and .json into DIR, and outrider-options.json to repeat the run"""


class BaselineOptions(Group, title="text"):
    baseline: bool = False
    """also run target-only with the same prompt and seed, for the speed-up"""


class RecordOptions(Group, title="text"):
    record: File | None = None
    """write the text, its candidates and their times to this file, which the chat page replays;
    the file holds the prompt"""


class HourlyOptions(Group, title="prices and limits"):
    usd_per_hour: Amount | None = None
    """price of the target's machine, in dollars an hour; a target reports it to its clients"""


class PriceOptions(HourlyOptions):
    """Prices of the target, traffic and electricity, and the watts of both machines."""

    instance: Annotated[str, Shown("TYPE")] | None = None
    """price the target by EC2 type, such as trn1.2xlarge"""
    region: str = "us-east-1"
    """AWS region of --instance"""
    pricing: Literal["on-demand", "spot"] = "on-demand"
    """how --instance is paid"""
    no_live: bool = False
    """the bundled price: ask nobody"""
    target_share: Share = 1.0
    """part of the target's hour that is charged: 1/n where n such sessions share it"""
    usd_per_kwh: Usd | None = None
    """price of this machine's electricity"""
    usd_per_gb_up: Usd | None = None
    """price of traffic to the target"""
    usd_per_gb_down: Usd | None = None
    """price of traffic from the target"""
    draft_watts: Watts | None = None
    """what this machine draws while it drafts"""
    target_watts: Watts | None = None
    """what the target's machine draws"""


class ExplainOptions(Group, title="prices and limits"):
    explain: bool = False
    """say on stderr what a token costs, what limits it and what would change that"""


class ObjectiveOptions(PriceOptions):
    objective: Objective | None = None
    """what cost is (default: total_cost where all its prices are given, else api_cost)"""


class GoalOptions(ObjectiveOptions):
    """Goals of drafting: what is kept small, or within a limit."""

    cs: KnobPosition = "tps"
    """cost against speed: tps, balanced, cost or 0 to 100"""
    min_tps: Annotated[float, Gt(0)] | None = None
    """tokens a second that must be kept, at least cost"""
    max_usd_per_1m: Amount | None = None
    """US dollars a million tokens that must be kept, at most speed"""
    max_joules_per_token: Annotated[float, Gt(0), Shown("J")] | None = None
    """joules a token that must be kept, at most speed"""
    max_usd: Amount | None = None
    """end the run, with what was made, when it has cost so much"""

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        limits = [name for name in self.given(GoalOptions, "max_usd") if name.startswith("--m")]
        if limits and read_knob(self.cs):
            raise ValueError(
                f"--cs weighs speed against cost, {limits[0]} is a limit that decides it: give one"
            )
        return self
