"""Errors, in the user's terms.

OutriderError
├── InvalidRequest      the request itself is wrong; retrying does not help
│   └── LimitExceeded   the request exceeds a limit of this model, artefact or server
├── Mismatch            two sides that must agree do not (tokenizers, models, positions)
├── UnsupportedModel    a checkpoint that would be computed wrongly; the message names the field
│   └── UnknownArchitecture  our own decoder does not support the model; a library may
├── BadArtifact         a compiled artefact that is incomplete, changed, or made for something else
├── MissingExtra        an optional package is needed, with its install line
└── Unavailable         the other side cannot be reached, or disconnected
    ├── Busy            the other side is full: retrying later helps
    └── Gone            the other side no longer has this session: open it again to continue
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of every error that is shown to a user as one line."""


class InvalidRequest(OutriderError, ValueError):
    """The request itself is wrong."""


class LimitExceeded(InvalidRequest):
    """The request is well formed but exceeds a limit."""


class Mismatch(OutriderError):
    """Two sides that must agree do not."""


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
