"""Outrider: lossless speculative decoding with a local draft model and a remote target model.

    import outrider

    with outrider.connect("127.0.0.1:50051") as engine:
        print(engine.generate("def main():").text)

The names in `__all__` are the public interface (docs/api.md). Everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from outrider.installation import check_top_level, outrider_version

check_top_level("inference", "grpc_comm")

from inference.errors import (  # noqa: E402
    BadArtifact,
    Busy,
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    MissingExtra,
    OutriderError,
    Unavailable,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from outrider.api import Engine
    from outrider.keywords import ConnectKeywords, ServeKeywords
    from outrider.target.target import RunningTarget
    from outrider.text.call_reader import ToolCall
    from outrider.text.completion import Completion
    from outrider.text.parameters import Parameters
    from outrider.text.pieces import Piece
    from outrider.text.runner import CompletionStream

__all__ = [
    "BadArtifact",
    "Busy",
    "Completion",
    "CompletionStream",
    "Engine",
    "Gone",
    "InvalidRequest",
    "LimitExceeded",
    "Mismatch",
    "MissingExtra",
    "OutriderError",
    "Parameters",
    "Piece",
    "RunningTarget",
    "ToolCall",
    "Unavailable",
    "UnsupportedModel",
    "connect",
    "serve",
]

__version__ = outrider_version()

_HOMES = {
    "Completion": "outrider.text.completion",
    "ToolCall": "outrider.text.call_reader",
    "Piece": "outrider.text.pieces",
    "Engine": "outrider.api",
    "RunningTarget": "outrider.target.target",
    "Parameters": "outrider.text.parameters",
    "CompletionStream": "outrider.text.runner",
}
"""Module of each public type, imported on first use, since a target's modules need torch."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def connect(
    target: str = "127.0.0.1:50051",
    *,
    draft: str | Literal[False] | None = None,
    **options: Unpack[ConnectKeywords],
) -> Engine:
    """Connect to a target and load a draft. The engine returned is a context manager.

    target: HOST:PORT; A,B for several replicas; dns:///HOST:PORT for a replica at each address of
        HOST; or the name of a target that `outrider deploy up` created
    draft: directory or hub name of the draft model; None for the embedded model, or for copying
        from the context if torch is not installed; False for no draft
    options: flags of `outrider serve` by name (docs/flags.md), such as tls_ca, token_file, cs

    Without a draft, the option `model` names the target's tokenizer (directory or hub name).

    Raises MissingExtra if the draft's package is not installed, InvalidRequest for an option that
    is not allowed, Unavailable if no target answers, and Mismatch if the two models' tokenizers
    differ.
    """
    from grpc_comm.client.named_targets import named_targets
    from inference.command import check_names
    from outrider.api import Engine
    from outrider.keywords import ConnectKeywords
    from outrider.options.roles import SharedClientRole

    check_names(options, ConnectKeywords, "connect()")
    flags: dict[str, Any] = {**options}
    flags["target" if target in named_targets() else "target_host"] = target
    if draft:
        flags["draft_model"] = draft
    if draft is False:
        flags["draft"] = "none"
    return Engine(SharedClientRole(**flags))


def serve(model: str | None = None, **options: Unpack[ServeKeywords]) -> RunningTarget:
    """Load a target model and serve it on background threads of this process.

    model: directory or hub name; None for the embedded model
    options: flags of `outrider target` by name (docs/flags.md), such as port, device, artifact

    The target returned is a context manager; its `address` is the bound one. Raises InvalidRequest
    for an option that is not allowed, UnsupportedModel for a model that would be computed wrongly,
    and MissingExtra if torch is not installed.
    """
    from inference.command import check_names
    from outrider.keywords import ServeKeywords
    from outrider.options.roles import TargetRole

    check_names(options, ServeKeywords, "serve()")
    flags: dict[str, Any] = {**options, "model": model}
    role = TargetRole(**flags)
    role.check_extra()
    from outrider.target.target import RunningTarget

    return RunningTarget(role)
