"""The roles. Each inherits the flags of its groups; flags of the last base class come first. To add
a role, add it to ROLES, and a row to outrider/cli.py and to GROUPS in commands.py.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpc_comm.transport import Address
from inference.errors import PACKAGES, is_installed, require
from inference.flags.group import FlagRule
from inference.flags.values import Directory, File, ModelName, Name
from inference.model.checkpoints.hub import is_gguf
from outrider.options import draft_flags, groups, network
from outrider.options.draft_flags import METHODS


class Role(groups.GeneralOptions):
    """Base of every role."""

    RULES: ClassVar = groups.RULES
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

    RULES: ClassVar = (*groups.RULES, FlagRule("rtt", needs="emulate"))
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
    network.ConnectionOptions,
    groups.GoalOptions,
):
    """Options of the roles that draft on this machine and verify at a target."""

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


class TextRole(Role, groups.TextOptions):
    """Options of the roles that generate text from prompts."""


class DraftRole(groups.BaselineOptions, TextRole, SharedClientRole, title="text"):
    """generate text from a prompt, or from a file of prompts"""

    BARE: ClassVar = "prompt"
    COMMON: ClassVar = (*PROMPTED, "baseline", "model", "draft", *TO_A_TARGET)
    role: Literal["draft"] = "draft"


class ChatRole(ClientRole, groups.SamplingOptions, title="text"):
    """chat in the terminal"""

    COMMON: ClassVar = (
        *("max_new_tokens", "temperature", "seed"),
        *("model", "draft", "cs", "max_usd", *TO_A_TARGET),
    )
    role: Literal["chat"] = "chat"


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
        if self.http_cert is None and not self.insecure:
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
    groups.BaselineOptions,
    groups.BatchOptions,
    groups.TargetModelOptions,
    TextRole,
    network.ConnectionOptions,
):
    """generate text with a fused target, without loading a model"""

    COMMON: ClassVar = (*PROMPTED, "baseline", "model", *TO_A_TARGET)
    role: Literal["fused_client"] = "fused_client"


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


class MakeCertRole(Role, network.HostOptions, title="security"):
    """create a self-signed certificate for a target"""

    COMMON: ClassVar = ("host", "out")
    role: Literal["cert"] = "cert"
    out: Directory = "certificates"
    """directory for the certificate and its keys"""


class MakeKeyRole(Role, title="security"):
    """create a client's key and print its token once"""

    COMMON: ClassVar = ("name", "keys_file")
    role: Literal["keys"] = "keys"
    name: Name
    """name of the client"""
    keys_file: File
    """file of clients' keys, to which the new key is added"""


class PullRole(Role, title="models and devices"):
    """download a model from the hub, or resume a download"""

    COMMON: ClassVar = ("name",)
    BARE: ClassVar = "name"
    role: Literal["pull"] = "pull"
    name: ModelName
    """hub name or directory of the model"""


class ListRole(Role, title="models and devices"):
    """list local models and the pairs among them"""

    COMMON: ClassVar = ("directory", "json")
    role: Literal["list"] = "list"
    directory: Directory | None = None
    """further directories to search, as A,B"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


class DoctorRole(Role, network.ConnectionOptions, groups.DeviceOptions, groups.QuantizationOptions):
    """check this machine, the target, the link and AWS credentials"""

    COMMON: ClassVar = ("model", "device", *TO_A_TARGET, "health", "json")
    role: Literal["doctor"] = "doctor"
    health: bool = False
    """only check that the target accepts sessions; with --tls_cert and no other TLS flag, only that
    certificate is trusted"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


ROLES: dict[str, type[Role]] = {
    model.model_fields["role"].default: model
    for model in (
        *(TargetRole, DraftRole, ChatRole, ServeRole, UpRole, FusedTargetRole, FusedClientRole),
        *(VerifyTargetRole, VerifyDraftRole, PullRole, ListRole, DoctorRole, MakeCertRole),
        MakeKeyRole,
    )
}
"""Every role by its name, the value of --role."""
