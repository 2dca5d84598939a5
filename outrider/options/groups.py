"""Groups of flags about models, text generation and prices, and the rules of all roles' flags.
roles.py combines groups into roles; draft_flags.py and network.py declare the other groups.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, Field, model_validator

from inference.errors import InvalidRequest
from inference.flags.command_line import CommandOptions
from inference.flags.group import Alias, FlagRule, Group, Metavar
from inference.flags.values import (
    Amount,
    Count,
    Directory,
    File,
    ModelName,
    Name,
    Usd,
    Watts,
)
from inference.sampling import CANDIDATES, MIN_TOP_P, SEED_BITS, SamplingParams

DEVICES = ("auto", "cpu", "cuda", "neuron", "neuron-legacy")


def is_device(name: str) -> bool:
    """Return whether --device accepts the name: one of DEVICES, or cuda:N."""
    return name in DEVICES or re.fullmatch(r"cuda:\d{1,3}", name) is not None


def _device(name: str) -> str:
    if not is_device(name):
        raise ValueError(f"one of {', '.join(DEVICES)} or cuda:N is needed")
    return name


KNOB = {"tps": 0.0, "balanced": 0.5, "cost": 1.0}
"""Named values of --cs, as weights: 0 counts only speed, 1 only cost."""


def read_knob(position: str) -> float:
    """Convert a value of --cs to a weight of 0 to 1. Raises InvalidRequest if it is malformed."""
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


DeviceName: TypeAlias = Annotated[str, AfterValidator(_device), Metavar("DEVICE")]
KnobPosition: TypeAlias = Annotated[str, AfterValidator(_knob), Metavar("KNOB")]
Seed: TypeAlias = Annotated[int, Ge(0), Lt(2**SEED_BITS)]
Precision = Literal["float32", "bfloat16", "float16"]
PrecisionChoice: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"] | None,
    AfterValidator(lambda value: None if value == "auto" else value),
]
"""A Precision, or None (also for auto), for which outrider/models/devices.py picks one."""

Quantization = Literal["int8", "int4"]
Objective = Literal[
    "total_cost", "api_cost", "energy_total", "draft_energy", "target_energy", "latency"
]


class GeneralOptions(CommandOptions, title="general"):
    config: File | None = None
    """YAML file with flags; the command line and OUTRIDER_... variables take precedence"""


class ModelOptions(Group, title="models and devices"):
    model: ModelName | None = None
    """model directory or hub name (default: the bundled model)"""


class DraftModelOptions(ModelOptions):
    draft_model: ModelName | None = None
    """draft's model directory or hub name (default: --model)"""

    @property
    def draft_name(self) -> str | None:
        return self.draft_model or self.model


class QuantizationOptions(DraftModelOptions, title="models and devices"):
    draft_quantization: Quantization | None = None
    """quantization of the draft's weight matrices, on cpu or cuda (docs/drafts.md)"""


class TargetModelOptions(ModelOptions):
    target_model: ModelName | None = None
    """target's model directory or hub name (default: --model)"""

    @property
    def target_name(self) -> str | None:
        return self.target_model or self.model


class DeviceOptions(Group, title="models and devices"):
    """The device of a model, and how the model is loaded."""

    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N, neuron or neuron-legacy; auto prefers CUDA"""
    dtype: PrecisionChoice = None
    """precision (default: auto, which is float32 for the embedded pair, else the checkpoint's own
    precision, or a faster one for this CPU; docs/drafts.md)"""
    threads: Count | None = None
    """CPU threads (default: 1 for small models, else torch's choice)"""
    sequence_length: Count | None = None
    """maximum length of prompt and output together (default: 2048, or the model's limit)"""


class BatchOptions(Group, title="models and devices"):
    batch: Annotated[Count, Alias("rows")] = 4
    """maximum number of sequences to generate at the same time"""


class BackendOptions(Group, title="models and devices"):
    backend: Literal["outrider", "transformers"] | None = None
    """implementation that computes a model on cpu or cuda (default: outrider if it supports the
    architecture, else transformers; docs/models.md)"""


def backend_of(options: Group) -> str | None:
    """Return the backend of a checkpoint; None if the options do not choose one."""
    return options.backend if isinstance(options, BackendOptions) else None


class TargetOptions(BatchOptions, DeviceOptions, TargetModelOptions):
    """A target model in this process, and the largest tree that it accepts."""

    artifact: Directory | None = None
    """compiled target to use instead of a model (built by outrider compile)"""
    max_tree_nodes: Count = 64
    """maximum nodes of a candidate tree, root included"""


class OffloadOptions(TargetOptions, title="models and devices"):
    """Storage of a target's layers outside the device."""

    layer_offload: Literal["host", "disk"] | None = None
    """location of the layers' weights for a target larger than memory: host memory (for cuda) or
    the checkpoint's files; each layer is copied while the previous one computes"""


class LegacyOptions(TargetOptions):
    """Options of a target that may also run on --device neuron-legacy."""

    tensor_parallel: Annotated[Count, Alias("tp_degree")] = 2
    """NeuronCores that share the target, with --device neuron-legacy"""


class MeasureOptions(Group, title="models and devices"):
    measure_first: bool = False
    """finish all timing measurements before the first request; by default a target measures while
    idle, and a draft measures only briefly"""


class EmulationOptions(Group, title="models and devices"):
    """The device and the network distance that a target emulates."""

    emulate: Name | None = None
    """profile whose forward-pass times are emulated; the output is still the model's own, and
    reports are marked as emulated (an unknown name lists the profiles)"""
    rtt: Annotated[float, Gt(0), Le(10_000), Metavar("MS")] | None = None
    """emulated round trip to an emulated target, in milliseconds"""


class SamplingOptions(Group, title="text"):
    """The sampling and the length of generated text."""

    max_new_tokens: Annotated[Count, Alias("max_tokens")] = 128
    """maximum new tokens"""
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None
    """sampling temperature; 0 is greedy (default: 0, or 0.8 for the embedded pair, which also has
    default stop strings that end the output after one function)"""
    top_p: Annotated[float, Ge(0), Le(1)] = 1.0
    """nucleus sampling threshold; 1 disables it, 0 keeps only the most likely token"""
    top_k: Annotated[int, Ge(0), Le(CANDIDATES)] = 0
    """number of most likely tokens to sample from; 0 means all"""
    seed: Seed | None = None
    """seed of the sampling noise; prompt i of several uses seed + i (default: random)"""

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        SamplingParams(self.temperature or 0.0, self.top_k, self.top_p or MIN_TOP_P)
        return self


class TextOptions(SamplingOptions):
    """The prompts, the form of the output, and the reports on it."""

    prompt: str | None = None
    """prompt, or - for stdin; the tokenizer's beginning-of-text token, if any, is prepended"""
    prompt_text: Annotated[File, Alias("prompt_file")] | None = None
    """file with one prompt per line, or - for stdin; up to --batch prompts run at a time"""
    chat: bool = False
    """apply the model's chat template to the prompt"""
    json_schema: File | None = Field(default=None, alias="schema")
    """file with a JSON schema that the output must conform to"""
    regex: str | None = None
    """regular expression that the whole output must match"""
    as_json: bool = Field(default=False, alias="json")
    """print one JSON object for each prompt to stdout, and nothing else"""
    profile: Directory | None = None
    """directory for outrider-profile.csv and .json, and outrider-options.json to repeat the run"""


class BaselineOptions(Group, title="text"):
    baseline: bool = False
    """also run the target alone with the same prompt and seed, to report the speed-up"""


class HourlyOptions(Group, title="prices and limits"):
    usd_per_hour: Amount | None = None
    """hourly price of the target's machine, in USD; a target reports it to its clients"""


class PriceOptions(HourlyOptions):
    """Prices of the target, traffic and electricity, and the power draw of both machines."""

    instance: Annotated[str, Metavar("TYPE")] | None = None
    """EC2 instance type that sets the target's price, such as trn1.2xlarge"""
    region: str = "us-east-1"
    """AWS region of --instance"""
    spot: bool = False
    """use the spot price of --instance instead of the on-demand price"""
    usd_per_kwh: Usd | None = None
    """electricity price of this machine, in USD per kWh"""
    usd_per_gb: Usd | None = None
    """price of traffic to and from the target, in USD per GB"""
    draft_watts: Watts | None = None
    """power draw of this machine while drafting, in watts"""
    target_watts: Watts | None = None
    """power draw of the target's machine, in watts"""


class GoalOptions(PriceOptions):
    """The goal of drafting: a quantity to minimize, and its weight against speed."""

    objective: Objective | None = None
    """quantity that counts as cost (default: total_cost if all its prices are known, else
    api_cost)"""
    cs: KnobPosition = "tps"
    """trade-off of cost and speed: tps, balanced, cost or 0 to 100"""
    min_tps: Annotated[float, Gt(0)] | None = None
    """minimum tokens per second; cost is minimized at that speed or above"""
    max_usd: Amount | None = None
    """spending limit of the run, in USD; the run then ends with the output so far"""


ROUNDS = "gamma tree_nodes tree_depth"

RULES: tuple[FlagRule, ...] = (
    FlagRule("tensor_parallel", needs="device=neuron-legacy"),
    FlagRule("layer_offload", excludes="artifact device=neuron*", why="it is for a checkpoint"),
    FlagRule(
        "backend=transformers",
        excludes="artifact layer_offload device=neuron* draft_quantization",
        why="the library computes a whole checkpoint, on cpu or cuda",
    ),
    FlagRule("measure_first", excludes="emulate", why="it states times"),
    FlagRule("tls_cert", needs="tls_key"),
    FlagRule("tls_key", needs="tls_cert"),
    FlagRule("http_cert", needs="http_key"),
    FlagRule("http_key", needs="http_cert"),
    FlagRule("token_file", excludes="keys_file", why="one key for all, or one each"),
    FlagRule("draft_quantization", needs="draft=*model*"),
    FlagRule("gamma", excludes="tree_nodes tree_depth", why="--gamma drafts a chain"),
    FlagRule(
        ROUNDS,
        excludes="draft=copy draft=none draft=*beside*",
        why="rounds are those of a draft model",
    ),
    FlagRule(
        ROUNDS,
        excludes="cs objective min_tps",
        why="those are of a draft that never waits",
    ),
    FlagRule("min_tps", excludes="cs", why="cost counts as far as that speed allows"),
    FlagRule("schema", excludes="regex", why="a text has one form"),
    FlagRule("instance", excludes="usd_per_hour", why="both price the target"),
    FlagRule("region spot", needs="instance", why="it says how that is priced"),
)
"""Flags of the roles that exclude each other, or that need another flag."""
