"""The roles. Each inherits the flags of its groups, or has as a field a group that functions take.

Flags of the last base class come first. To add a role, add a row to outrider/options/verbs.py too.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from grpc_comm.transport import Address
from inference.cost.billing import COSTS, ENERGIES
from inference.errors import PACKAGES, is_installed, require
from inference.flags.group import FlagRule
from inference.flags.values import Directory, File, Name
from inference.model.checkpoints.hub import is_gguf
from outrider.options import draft_flags, groups, network
from outrider.options.draft_flags import METHODS

OBJECTIVES_BUT = {
    "max_usd_per_1m": " ".join(f"objective={name}" for name in (*ENERGIES, "latency")),
    "max_joules_per_token": " ".join(f"objective={name}" for name in (*COSTS, "latency")),
}
ROUNDS = "gamma tree_nodes tree_depth"
LIMITS = "min_tps max_usd_per_1m max_joules_per_token"

RULES = (
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
    FlagRule("metrics_host", needs="metrics_port"),
    FlagRule("draft_quantization", needs="draft=*model*"),
    FlagRule("gamma", excludes="tree_nodes tree_depth", why="--gamma drafts a chain"),
    FlagRule(
        ROUNDS,
        excludes="draft=copy draft=none draft=*beside*",
        why="rounds are those of a draft model",
    ),
    FlagRule(
        ROUNDS,
        excludes=f"cs objective {LIMITS}",
        why="those are of a draft that never waits",
    ),
    FlagRule("schema", excludes="regex", why="a text has one form"),
    FlagRule("instance", excludes="usd_per_hour", why="both price the target"),
    FlagRule("region spot no_live", needs="instance", why="it says how that is priced"),
    FlagRule(LIMITS, excludes=LIMITS, why="one limit at a time"),
    *(FlagRule(limit, excludes=excluded) for limit, excluded in OBJECTIVES_BUT.items()),
)
"""Flags of the roles that exclude each other, or that need another flag."""


class Role(groups.GeneralOptions):
    """Base of every role."""

    RULES: ClassVar = RULES
    EXTRA: ClassVar[str] = ""
    """The optional extra of pip that the role needs; empty for none."""
    role: str = ""

    def check_extra(self) -> None:
        """Raise MissingExtra, with the install command, if the role needs a missing extra."""
        if self.EXTRA:
            require(self.EXTRA, f"outrider {self.role}")


SERVED_TO = (
    *("port", "host", "metrics_port", "usd_per_hour"),
    *("tls_cert", "tls_key", "token_file", "keys_file"),
)
"""Common flags of a target: its address, price and access control."""


class ServingRole(
    Role,
    network.ObservingOptions,
    groups.HourlyOptions,
    network.ListeningOptions,
    groups.MeasureOptions,
    groups.OffloadOptions,
    groups.EmulationOptions,
    title="models and devices",
):
    """Options of the roles that serve a target."""

    RULES: ClassVar = (*RULES, FlagRule("rtt", needs="emulate"))
    EXTRA: ClassVar = "torch"
    models: File | None = None
    """JSON file of further models to serve, each loaded on its first request"""


class TargetRole(groups.BackendOptions, ServingRole, groups.LegacyOptions):
    """serve a target model"""

    COMMON: ClassVar = (
        *("model", "artifact", "device", "dtype", "batch", "sequence_length", "emulate"),
        *SERVED_TO,
    )
    role: Literal["target"] = "target"


class FusedTargetRole(draft_flags.SourceOptions, groups.QuantizationOptions, ServingRole):
    """serve a target together with a draft, on one host"""

    COMMON: ClassVar = ("model", "draft_model", "device", "batch", "draft", *SERVED_TO)
    role: Literal["fused_target"] = "fused_target"

    @model_validator(mode="after")
    def _a_model_drafts(self) -> Self:
        if self.method is None:
            raise ValueError(
                f"a draft beside the target is a model: --draft {', '.join(METHODS)} is needed, "
                f"with copy or without, got {self.draft}"
            )
        return self


TO_A_TARGET = ("target_host", "port", "target", "tls_ca", "token_file")
"""Common flags of a client: its target's address, and how both sides authenticate."""
PROMPTED = ("prompt", "prompt_text", "chat", "max_new_tokens", "temperature", "seed", "json")
"""Common flags of commands that generate text from prompts."""


class ClientRole(
    Role,
    draft_flags.PresetOptions,
    groups.BackendOptions,
    groups.MeasureOptions,
    groups.DeviceOptions,
    groups.QuantizationOptions,
):
    """Options of the roles that draft on this machine and verify at a target."""

    goal: groups.GoalOptions = groups.GoalOptions()
    connection: network.ConnectionOptions = network.ConnectionOptions()

    def check_extra(self) -> None:
        options = self.computable
        if options.method is not None:
            draft_flags.check_method(options)

    @property
    def computable(self) -> Self:
        """These options; if torch is missing and no flag asks for a draft model, with --draft
        copy,beside.
        """
        if is_installed(PACKAGES["torch"]) or self.method != "model":
            return self
        requested = {"draft", "draft_model", "draft_quantization"} & self.explicit().keys()
        if requested or self.waits or is_gguf(self.draft_name or ""):
            return self
        return self.replace(draft=f"{draft_flags.COPY},{draft_flags.BESIDE}")

    @model_validator(mode="after")
    def _drafts_here(self) -> Self:
        if self.method is not None and not METHODS[self.method].local:
            raise ValueError(
                f"--draft {self.draft}: {self.method} drafts beside the target: it is for "
                "`outrider fused_target`"
            )
        return self


class SharedClientRole(groups.BatchOptions, ClientRole):
    """Options of clients that handle several requests at the same time."""


class TextRole(Role):
    """Options of the roles that generate text from prompts."""

    text: groups.TextOptions = groups.TextOptions()


class DraftRole(groups.BaselineOptions, TextRole, SharedClientRole, title="text"):
    """generate text from a prompt, or from a file of prompts"""

    BARE: ClassVar = "prompt"
    COMMON: ClassVar = (*PROMPTED, "baseline", "model", "draft", *TO_A_TARGET)
    role: Literal["draft"] = "draft"


class ChatRole(ClientRole, title="text"):
    """chat in the terminal"""

    COMMON: ClassVar = (
        *("max_new_tokens", "temperature", "seed"),
        *("model", "draft", "cs", "max_usd", *TO_A_TARGET),
    )
    role: Literal["chat"] = "chat"
    text: groups.SamplingOptions = groups.SamplingOptions()


class EndpointRole(network.HttpOptions, SharedClientRole):
    """Options of the roles that serve an HTTP endpoint."""

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if Address(self.http_host, self.http_port).loopback:
            return self
        if self.api_keys is None:
            raise ValueError(
                f"--http_host {self.http_host} is reached by others: give --api_keys FILE, or "
                "listen on 127.0.0.1"
            )
        if self.http_cert is None and not self.connection.insecure:
            raise ValueError(
                f"--http_host {self.http_host} without TLS shows keys and texts to the network: "
                "give --http_cert and --http_key, or --insecure"
            )
        return self


class ServeRole(EndpointRole):
    """serve an OpenAI-compatible endpoint and a chat page"""

    COMMON: ClassVar = (
        *("http_port", "http_host", "http_cert", "http_key", "api_keys"),
        *("model", "draft", "batch", "cs", *TO_A_TARGET),
    )
    role: Literal["serve"] = "serve"


class UpRole(EndpointRole):
    """start a named model pair with endpoint and chat page"""

    BARE: ClassVar = "name"
    COMMON: ClassVar = (
        *("name", "directory", "device", "threads", "batch", "http_port"),
        *TO_A_TARGET,
    )
    role: Literal["up"] = "up"
    name: Name | None = None
    """model pair, as NAME or NAME:SIZE of its target; without a name, all pairs are listed"""
    directory: Directory | None = None
    """local directories to load models from instead of downloading them, separated by commas"""

    @property
    def elsewhere(self) -> bool:
        """Whether the target is not started by this command."""
        return bool({"target_host", "port"} & self.explicit().keys())

    @property
    def lists(self) -> bool:
        """Whether the command only lists the pairs."""
        return not (self.name or self.directory or self.elsewhere)

    def check_extra(self) -> None:
        if not (self.elsewhere or self.lists):
            require("torch", "a target", otherwise="; --target_host HOST drafts for one elsewhere")

    @model_validator(mode="after")
    def _chooses_the_models(self) -> Self:
        models = [*self.changed(groups.ModelOptions), *self.changed(groups.DraftModelOptions)]
        if models:
            raise ValueError(f"{models[0]} is for outrider serve: outrider up chooses the models")
        return self


class FusedClientRole(
    groups.BaselineOptions, groups.BatchOptions, groups.TargetModelOptions, TextRole
):
    """generate text with a fused target, without loading a model"""

    COMMON: ClassVar = (*PROMPTED, "baseline", "model", *TO_A_TARGET)
    role: Literal["fused_client"] = "fused_client"
    connection: network.ConnectionOptions = network.ConnectionOptions()


class VerifyTargetRole(
    TextRole, groups.BackendOptions, groups.OffloadOptions, groups.LegacyOptions
):
    """generate text with the target alone, in this process"""

    COMMON: ClassVar = (*PROMPTED, "model", "artifact", "device", "dtype")
    EXTRA: ClassVar = "torch"
    role: Literal["verify_target"] = "verify_target"

    @model_validator(mode="after")
    def _one_text_at_a_time(self) -> Self:
        if self.changed(groups.BatchOptions) and self.device != "neuron":
            raise ValueError(
                "--batch needs --device neuron here: other devices generate one text at a time"
            )
        return self


class VerifyDraftRole(
    TextRole, groups.BackendOptions, groups.DeviceOptions, groups.QuantizationOptions
):
    """generate text with the draft alone, in this process"""

    COMMON: ClassVar = (*PROMPTED, "model", "device", "dtype", "draft_quantization")
    EXTRA: ClassVar = "torch"
    role: Literal["verify_draft"] = "verify_draft"
