"""The flags, each declared once, in groups of what belongs together. outrider/options/roles.py
combines groups into roles.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, model_validator
from typing_extensions import Self

from inference.cost.billing import COSTS, ENERGIES, read_knob
from inference.sampling import CANDIDATES, SEED_BITS, SamplingParams
from outrider.options.draft_methods import COPY, SOURCES_HELP
from outrider.options.group import Also, Group, Shown
from outrider.options.values import (
    Count,
    Device,
    Directory,
    File,
    Knob,
    ModelName,
    Natural,
    Objective,
    PrecisionChoice,
    Price,
    Share,
    Sources,
    Usd,
    Watts,
)


class GeneralOptions(Group, title="general"):
    COMMON: ClassVar[tuple[str, ...]] = ()
    """Flags that most people need, in the order of a verb's help."""

    BARE: ClassVar[str] = ""
    """The flag whose value may directly follow the verb; empty for none."""

    config: File | None = None
    """read options from this YAML file; the command line and OUTRIDER_... come before it"""
    print_config: bool = False
    """print every value and where it comes from, as a file for --config, and end"""
    debug: bool = False
    """show tracebacks"""


class ModelOptions(Group, title="models and devices"):
    model: ModelName | None = None
    """model directory or hub name (default: the embedded model of the role)"""


class DraftModelOptions(ModelOptions):
    draft_model: ModelName | None = None
    """--model for the draft alone"""

    @property
    def draft_name(self) -> str | None:
        return self.draft_model or self.model


class TargetModelOptions(ModelOptions):
    target_model: ModelName | None = None
    """--model for the target alone"""

    @property
    def target_name(self) -> str | None:
        return self.target_model or self.model


class DeviceOptions(Group, title="models and devices"):
    """Where and how a model is loaded."""

    device: Device = "auto"
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


class TargetOptions(BatchOptions, DeviceOptions, TargetModelOptions):
    """What a target model in this process is loaded from."""

    artifact: Directory | None = None
    """serve this compiled target (python -m compile) in place of a model"""
    max_tree_nodes: Count = 64
    """largest tree taken, its root included"""


class LegacyOptions(TargetOptions):
    """Options of a target that may also run on --device neuron-legacy."""

    tensor_parallel: Annotated[Count, Also("tp_degree")] = 2
    """--device neuron-legacy: NeuronCores that share the target"""

    @model_validator(mode="after")
    def _legacy_only(self) -> Self:
        if self.given(LegacyOptions) and self.device != "neuron-legacy":
            raise ValueError("--tensor_parallel is for --device neuron-legacy")
        return self


class MeasureOptions(Group, title="models and devices"):
    measure_first: bool = False
    """measure all times before the first text; otherwise a target measures while nobody asks, and a
    draft only for a moment"""


class SamplingOptions(Group, title="text"):
    """How texts are made, and how they are shown."""

    max_new_tokens: Count = 128
    """tokens to make at most"""
    temperature: Annotated[float, Ge(0), Le(1000)] = 0.0
    """0 is greedy"""
    top_p: Share = 1.0
    """1 is off"""
    top_k: Annotated[int, Ge(0), Le(CANDIDATES)] = 0
    """0 is off"""
    seed: Annotated[int, Ge(0), Lt(2**SEED_BITS)] | None = None
    """prompt i uses seed + i (default: random, printed)"""
    color: Literal["auto", "always", "never"] = "auto"
    """mark in the text what was guessed; auto: on a terminal, unless NO_COLOR is set"""

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        self.sampling(self.seed or 0)
        return self

    def sampling(self, seed: int) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_k, self.top_p, seed).on_the_wire()


class TextOptions(SamplingOptions):
    """Which texts are made, and how they are shown."""

    prompt: str | None = None
    """text to go on with, - for standard input; the tokenizer's beginning-of-text token is put in
    front where it defines one"""
    prompt_text: Annotated[File, Also("prompt_file")] | None = None
    """one prompt a line, - for standard input; --batch of them at once"""
    chat: bool = False
    """apply the model's chat template to the prompt"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object a prompt on stdout, and nothing else there"""
    profile: Directory | None = None
    """write outrider-profile.csv and .json into DIR, and outrider-options.json to repeat the run"""


class BaselineOptions(Group, title="text"):
    baseline: bool = False
    """also run target-only with the same prompt and seed, for the speed-up"""


class TreeOptions(Group, title="drafting"):
    """What the draft proposes, and whether the target waits for it."""

    gamma: Annotated[Natural, Also("speculation_length")] | None = None
    """rounds: the target waits for a chain of this length"""
    tree_nodes: Count | None = None
    """rounds with trees of this many nodes (default of --pace wait and beside --tree_depth: 16)"""
    tree_depth: Count | None = None
    """rounds with trees of this depth (default: 6)"""
    pace: Literal["go_on", "wait"] | None = None
    """go_on: the target waits for nobody (the default); wait: for whole trees, which takes fewer of
    its forwards"""

    @property
    def waits(self) -> bool:
        """The target makes a forward only when a whole tree is drafted."""
        return bool(self._fixed) or self.pace == "wait"

    @property
    def rounds_flag(self) -> str:
        """The flag that makes the target wait."""
        return self._fixed[0] if self._fixed else "--pace wait"

    @property
    def _fixed(self) -> list[str]:
        return self.given(TreeOptions, "pace")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.gamma is not None and len(self._fixed) > 1:
            raise ValueError(f"--gamma drafts a chain: it does not go with {self._fixed[1]}")
        if self._fixed and self.pace == "go_on":
            raise ValueError(
                f"{self._fixed[0]} makes the target wait for whole trees, --pace go_on lets it go "
                "on: give one of them"
            )
        return self


class SourceOptions(Group, title="drafting"):
    """Where candidates come from."""

    draft: Annotated[Sources, Field(description=SOURCES_HELP)] = "model,copy"

    @property
    def method(self) -> str | None:
        """The kind of model that drafts, a name of METHODS; None where text is copied alone."""
        return next((name for name in self.draft.split(",") if name != COPY), None)

    @property
    def copies(self) -> bool:
        """Earlier text is copied."""
        return COPY in self.draft.split(",")


class HistoryOptions(SourceOptions):
    """For clients of one user."""

    copy_history: bool = False
    """copy from earlier texts of this run, too"""

    @model_validator(mode="after")
    def _something_copies(self) -> Self:
        if self.copy_history and not self.copies:
            raise ValueError("--copy_history copies earlier texts: it needs --draft copy")
        return self


class HourlyOptions(Group, title="prices and limits"):
    usd_per_hour: Price | None = None
    """price of the target's machine; a target tells its clients, and --watch shows dollars per
    million tokens, idle time included"""


_OF_INSTANCE = ("--region", "--pricing", "--no_live")


class PriceOptions(HourlyOptions):
    """What the target, traffic and electricity cost."""

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

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if self.instance is not None and self.usd_per_hour is not None:
            raise ValueError("--instance and --usd_per_hour both price the target: give one")
        about = [name for name in self.given(PriceOptions) if name in _OF_INSTANCE]
        if about and self.instance is None:
            raise ValueError(f"{about[0]} says how --instance is priced: give that, too")
        return self


class ExplainOptions(Group, title="prices and limits"):
    explain: bool = False
    """say on stderr what a token costs, what limits it and what would change that"""


class GoalOptions(PriceOptions):
    """What drafting is to keep small, or below a limit."""

    cs: Knob = "tps"
    """cost against speed: tps, balanced, cost or 0 to 100"""
    objective: Objective | None = None
    """what cost is (default: total_cost where all its prices are given, else api_cost)"""
    min_tps: Annotated[float, Gt(0)] | None = None
    """tokens a second that must be kept, at least cost"""
    max_usd_per_1m: Price | None = None
    """US dollars a million tokens that must be kept, at most speed"""
    max_joules_per_token: Annotated[float, Gt(0), Shown("J")] | None = None
    """joules a token that must be kept, at most speed"""
    max_usd: Price | None = None
    """end the run, with what was made, when it has cost so much"""

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        limits = [name for name in self.given(GoalOptions) if name.startswith(("--min", "--max_"))]
        limits = [name for name in limits if name != "--max_usd"]
        if len(limits) > 1:
            raise ValueError(f"one limit at a time: {' or '.join(limits)}")
        if limits and read_knob(self.cs):
            raise ValueError(
                f"--cs weighs speed against cost, {limits[0]} is a limit that decides it: give one"
            )
        costs = ENERGIES if "--max_joules_per_token" in limits else COSTS
        if limits and limits[0] != "--min_tps" and (self.objective or costs[0]) not in costs:
            raise ValueError(
                f"{limits[0]} goes with --objective {', '.join(costs)}: got {self.objective}"
            )
        return self
