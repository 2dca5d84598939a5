"""Models on the Hugging Face hub: download, revisions and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from inference.errors import InvalidRequest

_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer.model", "*.jinja"]
_OTHER_FORMATS = ["consolidated*.safetensors"]


class PinnedModel(NamedTuple):
    """A model on the hub, pinned to a commit."""

    name: str  # NAME@COMMIT
    needs_token: bool  # whether download needs an account


def find_model(name: str, *, weights: bool = True, file: str = "") -> Path:
    """Return a model's directory. Downloads the model unless `name` is a directory.

    name: a directory, or a hub name with optional revision, NAME@REVISION
    weights: False to skip the weights
    file: the only file to download, such as a GGUF file; empty for a checkpoint

    Raises InvalidRequest with the remedy.
    """
    if Path(name).is_dir():
        return Path(name)
    repository, revision = split_revision(name)
    if name.startswith((".", "/", "~")) or repository.count("/") > 1:
        raise InvalidRequest(f"no such model directory: {name}")
    from huggingface_hub import snapshot_download

    with _hub_refusals(name):
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=file or _FILES,
                ignore_patterns=_OTHER_FORMATS if weights else ["*.safetensors"],
            )
        )


def is_gguf(name: str) -> bool:
    """Return whether a model's name has the suffix of GGUF files."""
    return name.endswith(".gguf")


def split_revision(name: str) -> tuple[str, str | None]:
    """Split NAME@REVISION. The revision is None if there is none, or if `name` is a directory."""
    repository, _, revision = name.partition("@")
    return (name, None) if not revision or Path(name).is_dir() else (repository, revision)


def pin_model(name: str) -> PinnedModel:
    """Pin a model on the hub to its current commit.

    Raises InvalidRequest for a directory, and for a model that this machine cannot access.
    """
    from huggingface_hub import get_token

    if Path(name).is_dir():
        raise InvalidRequest(f"{name} lies on this machine: an instance takes a hub name")
    repository = split_revision(name)[0]
    try:
        return PinnedModel(f"{repository}@{_commit(name, False)}", needs_token=False)
    except InvalidRequest:
        token = get_token()
        if token is None:
            raise
    return PinnedModel(f"{repository}@{_commit(name, token)}", needs_token=True)


def _commit(name: str, token: str | bool) -> str:
    """Return the commit of a model on the hub, bypassing the local cache."""
    from huggingface_hub import hf_hub_download

    repository, revision = split_revision(name)
    with _hub_refusals(name), TemporaryDirectory(prefix="outrider-") as cache:
        config = hf_hub_download(
            repository, "config.json", revision=revision, cache_dir=cache, token=token
        )
        return Path(config).parent.name


@contextmanager
def _hub_refusals(name: str) -> Iterator[None]:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise InvalidRequest(
            f"{name} is gated: accept its licence on its hub page, then set HF_TOKEN to a token of "
            "that account"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InvalidRequest(
            f"{name}: no such directory, and no such model on the hub (a private one needs "
            "HF_TOKEN)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InvalidRequest(
            f"{name}: no such directory here, and the hub cannot be reached to download it"
        ) from error
