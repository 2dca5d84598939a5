"""Errors, in the user's terms.

OutriderError
├── InvalidRequest      the request itself is wrong; asking again does not help
│   └── LimitExceeded   it asks for more than this model, artefact or server serves
├── Mismatch            two sides that must agree do not (tokenizers, models, positions)
├── UnsupportedModel    a checkpoint that would be computed wrongly; the message names the field
│   └── UnknownArchitecture  the decoder of our own does not compute it; a library may
├── BadArtifact         a compiled artefact that is incomplete, changed, or made for something else
├── MissingExtra        an optional package is needed, with its install line
└── Unavailable         the other side cannot be reached, or went away
    ├── Busy            it is there and full: asking again later helps
    └── Gone            it does not hold this session any more: open the session anew to go on
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of every error that is shown to a user as one line."""


class InvalidRequest(OutriderError, ValueError):
    """The request itself is wrong."""


class LimitExceeded(InvalidRequest):
    """The request is well formed but larger than what is served."""


class Mismatch(OutriderError):
    """Two sides that must agree do not."""


class UnsupportedModel(OutriderError):
    """A checkpoint that would be computed wrongly; the message names the field."""


class UnknownArchitecture(UnsupportedModel):
    """A checkpoint of an architecture that the decoder of our own does not compute."""


class BadArtifact(OutriderError, ValueError):
    """A compiled artefact that is incomplete, changed, or made for something else."""


class MissingExtra(OutriderError):
    """An optional package is not installed; the message holds the install line."""


class Unavailable(OutriderError):
    """The other side cannot be reached or went away."""


class Busy(Unavailable):
    """The other side is there and full; asking again after `retry_after` seconds may help."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gone(Unavailable):
    """The other side does not hold this session any more.

    A new session that starts with the tokens made so far continues the text.
    """
