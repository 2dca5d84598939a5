"""What each --role takes: a model of its own, composed of the groups of flags.

The flags of the last base come first.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from outrider.options import groups, network, offload, presets, reduction
from outrider.options.draft_methods import METHODS
from outrider.options.values import Directory, File, ModelName, Name


class ServingRole(
    groups.GeneralOptions,
    network.ObservingOptions,
    groups.HourlyOptions,
    network.ListeningOptions,
    groups.MeasureOptions,
    offload.OffloadOptions,
    title="models and devices",
):
    """Options of the roles that serve a target."""

    models: File | None = None
    """also serve the models listed in this JSON file, each loaded when a client first names it"""
    emulate: Name | None = None
    """the model chooses, each forward takes the time of this profile; all that is reported says
    emulated (unknown names list them)"""

    @model_validator(mode="after")
    def _what_is_measured(self) -> Self:
        if self.measure_first and self.emulate:
            raise ValueError("--emulate states the times that --measure_first measures: give one")
        return self


class TargetRole(ServingRole, groups.LegacyOptions):
    """serve a target"""

    COMMON: ClassVar = (
        *("model", "artifact", "device", "port", "host"),
        *("tls_cert", "tls_key", "token_file"),
    )
    role: Literal["target"] = "target"


class FusedTargetRole(groups.SourceOptions, reduction.ReductionOptions, ServingRole):
    """serve a target with a draft beside it, on one host"""

    role: Literal["fused_target"] = "fused_target"

    @model_validator(mode="after")
    def _a_model_drafts(self) -> Self:
        if self.method is None:
            raise ValueError(
                f"a draft beside the target is a model: --draft {', '.join(METHODS)} is needed, "
                f"with copy or without, got {self.draft}"
            )
        return self


TO_A_TARGET = ("target", "target_host", "model", "tls_ca", "token_file")
"""Common flags of a client: where its target is, which draft it loads, and how it is known."""


class ClientRole(
    groups.GeneralOptions,
    network.ConnectionOptions,
    groups.GoalOptions,
    presets.PresetOptions,
    groups.MeasureOptions,
    groups.SourceOptions,
    groups.TreeOptions,
    groups.DeviceOptions,
    reduction.ReductionOptions,
):
    """Options of the roles that draft here and verify at a target."""

    @model_validator(mode="after")
    def _drafts_here(self) -> Self:
        if self.method is not None and not METHODS[self.method].here:
            raise ValueError(
                f"--draft {self.draft}: {self.method} drafts beside the target, in role "
                "fused_target"
            )
        return self

    @model_validator(mode="after")
    def _rounds_need_a_model(self) -> Self:
        if self.waits and self.method is None:
            raise ValueError(
                f"--draft {self.draft} copies without a model, {self.rounds_flag} makes rounds of "
                "a draft model: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _rounds_have_no_goal(self) -> Self:
        goals = self.given(groups.GoalOptions, "max_usd")
        if self.waits and goals:
            raise ValueError(
                f"{goals[0]} steers a draft that never waits, {self.rounds_flag} makes rounds: "
                "give one of them"
            )
        return self


class SharedClientRole(groups.BatchOptions, ClientRole):
    """Options of clients that make several texts at the same time."""


class DraftRole(
    groups.ExplainOptions,
    groups.HistoryOptions,
    groups.BaselineOptions,
    groups.TextOptions,
    SharedClientRole,
):
    """make text: draft here, verify at a target"""

    BARE: ClassVar = "prompt"
    COMMON: ClassVar = (*("prompt", "chat", "max_new_tokens", "temperature"), *TO_A_TARGET)
    role: Literal["draft"] = "draft"

    @model_validator(mode="after")
    def _rounds_explain_nothing(self) -> Self:
        if self.waits and self.explain:
            raise ValueError(
                f"--explain tells of a draft that never waits, {self.rounds_flag} makes rounds: "
                "give one of them"
            )
        return self


class ChatRole(groups.HistoryOptions, groups.SamplingOptions, ClientRole):
    """chat in the terminal: draft here, verify at a target"""

    COMMON: ClassVar = (*TO_A_TARGET, *("system", "temperature", "max_new_tokens", "cs"))
    role: Literal["chat"] = "chat"
    system: str | None = None
    """the system message"""
    load: File | None = None
    """go on with a conversation that was saved in this file"""


class ServeRole(network.HttpOptions, SharedClientRole):
    """serve an OpenAI-compatible endpoint and a chat page: draft here, verify at a target"""

    COMMON: ClassVar = (*TO_A_TARGET, *("http_port", "http_host", "api_keys", "cs"))
    role: Literal["serve"] = "serve"


class FusedClientRole(
    groups.GeneralOptions,
    network.ConnectionOptions,
    groups.BaselineOptions,
    groups.TextOptions,
    groups.BatchOptions,
    groups.TargetModelOptions,
):
    """make text with a fused target; no model is loaded here"""

    role: Literal["fused_client"] = "fused_client"


class VerifyTargetRole(
    groups.GeneralOptions, groups.TextOptions, offload.OffloadOptions, groups.LegacyOptions
):
    """make text with the target alone, in this process"""

    role: Literal["verify_target"] = "verify_target"

    @model_validator(mode="after")
    def _one_text_at_a_time(self) -> Self:
        if self.given(groups.BatchOptions) and self.device != "neuron":
            raise ValueError("--batch is for --device neuron here: one text is made at a time")
        return self


class VerifyDraftRole(
    groups.GeneralOptions, groups.TextOptions, groups.DeviceOptions, reduction.ReductionOptions
):
    """make text with the draft alone, in this process"""

    role: Literal["verify_draft"] = "verify_draft"


class MakeCertRole(groups.GeneralOptions, network.HostOptions, title="security"):
    """make a self-signed certificate for a target"""

    COMMON: ClassVar = ("host", "out")
    role: Literal["make-cert"] = "make-cert"
    out: Directory = "certificates"
    """where the certificate is written"""


class MakeKeyRole(groups.GeneralOptions, network.KeysOptions, title="security"):
    """make a key for a client; its token is printed once"""

    COMMON: ClassVar = ("name", "keys_file")
    role: Literal["make-key"] = "make-key"
    name: Name | None = None
    """whose key it is"""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.name and self.keys_file):
            raise ValueError("a key needs a name and a file: --name NAME --keys_file FILE")
        return self


class ProfilesRole(groups.GeneralOptions, title="general"):
    """list the times that are kept of models on this machine, or remove them"""

    role: Literal["profiles"] = "profiles"
    clear: bool = False
    """remove them"""


class PullRole(groups.GeneralOptions, title="models and devices"):
    """download a model from the hub, with bytes and time left; resumes"""

    COMMON: ClassVar = ("name",)
    BARE: ClassVar = "name"
    role: Literal["pull"] = "pull"
    name: ModelName | None = None
    """the model: hub name or directory"""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.name:
            raise ValueError("pull needs a model: pull NAME")
        return self


class ListRole(groups.GeneralOptions, title="models and devices"):
    """list the models here, how large they are, and which pairs fit"""

    COMMON: ClassVar = ("directory", "remove", "json")
    role: Literal["list"] = "list"
    directory: Directory | None = None
    """also look for models below these directories: A,B"""
    remove: Name | None = None
    """delete this model from the hub's cache"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


class DoctorRole(
    groups.GeneralOptions,
    network.ConnectionOptions,
    groups.DeviceOptions,
    reduction.ReductionOptions,
):
    """check this machine: its draft, the target, the link, and the credentials of AWS"""

    COMMON: ClassVar = (*TO_A_TARGET, "device", "json")
    role: Literal["doctor"] = "doctor"
    health: bool = False
    """only ask the target at --target_host whether it takes sessions; --tls_cert alone trusts that
    very certificate"""
    as_json: bool = Field(default=False, alias="json")
    """one JSON object on stdout"""


ROLES: dict[str, type[groups.GeneralOptions]] = {
    "target": TargetRole,
    "draft": DraftRole,
    "chat": ChatRole,
    "serve": ServeRole,
    "fused_target": FusedTargetRole,
    "fused_client": FusedClientRole,
    "verify_target": VerifyTargetRole,
    "verify_draft": VerifyDraftRole,
    "pull": PullRole,
    "list": ListRole,
    "doctor": DoctorRole,
    "make-cert": MakeCertRole,
    "make-key": MakeKeyRole,
    "profiles": ProfilesRole,
}
"""Every role by its name."""

VERBS = {
    "target": "target",
    "serve": "serve",
    "chat": "chat",
    "run": "draft",
    "pull": "pull",
    "list": "list",
    "doctor": "doctor",
    "cert": "make-cert",
    "keys": "make-key",
}
"""Verbs of the installed command, and their roles. A role's own name is a verb, too."""

OTHER_VERBS = {
    "demo": "a target and a draft here as two processes, and what drafting saves",
    "compile": "build a target for a device: CPU, trn1, inf2, trn2, trn3",
    "compare": "measure architectures side by side",
    "runs": "make the runs and sweeps of a file, and keep what came of each",
    "deploy": "targets on AWS: plan, up, status, logs, tunnel, down, and what they cost",
}
"""Verbs that are commands of their own, with their help."""

GONE = {
    "architecture": (
        "the target goes on by itself and takes whatever the draft proposes, so there is nothing "
        "to choose; --role fused_client asks for the draft beside the target"
    ),
    "no_bets": (
        "the draft never waits for an answer, so it bets on none; --pace wait lets the target wait"
    ),
    "acceptance": "every text is the target's own seeded one, as --acceptance match made it",
}
"""Flags of earlier versions, and what replaced them."""
