"""Errors, in the user's terms, and the check for optional packages (extras) before work begins."""

from __future__ import annotations

from importlib.util import find_spec


class OutriderError(Exception):
    """Base of every error that is shown to a user as one line."""


class InvalidRequest(OutriderError, ValueError):
    """The request itself is wrong: retrying does not help."""


class LimitExceeded(InvalidRequest):
    """The request is well formed but exceeds a limit."""


class Mismatch(OutriderError):
    """Two sides that must agree do not: tokenizers, models, positions."""


class UnsupportedModel(OutriderError):
    """A checkpoint that would be computed wrongly; the message names the field."""


class UnknownArchitecture(UnsupportedModel):
    """A checkpoint of an architecture that our own decoder does not support."""


class BadArtifact(OutriderError, ValueError):
    """A compiled artefact that is incomplete, changed, or made for something else."""


class MissingExtra(OutriderError):
    """An optional package is not installed; the message has the install command."""


class Unavailable(OutriderError):
    """The other side cannot be reached, or disconnected."""


class Busy(Unavailable):
    """The other side is full; retrying after `retry_after` seconds may help."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gone(Unavailable):
    """The other side no longer has this session.

    To continue the output, open a new session with all tokens so far as its prompt.
    """


PACKAGES = {
    "torch": "torch",
    "gguf": "llama_cpp",
    "aws": "boto3",
    "plots": "matplotlib",
    "ray": "ray",
    "xml": "defusedxml",
}
"""Extra -> the package whose presence shows that the extra is installed."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported. The package is not imported."""
    return find_spec(package) is not None


def install(extra: str) -> str:
    """Return the command that installs an extra from a checkout (no package index has Outrider)."""
    return f"pip install '.[{extra}]'"


def require(extra: str, what: str, package: str | None = None, *, otherwise: str = "") -> None:
    """Raise MissingExtra, with the install line, unless an extra is installed.

    what: the feature that needs the extra
    package: the package to check instead of the one in PACKAGES
    otherwise: text to append to the error
    """
    name = package or PACKAGES[extra]
    if not is_installed(name):
        raise MissingExtra(f"{what} needs {name}: {install(extra)}{otherwise}")
