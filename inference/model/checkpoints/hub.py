"""Models of the hub: their local directories, their revisions, and the hub's errors."""

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
    """A model of the hub at one commit."""

    name: str  # NAME@COMMIT
    needs_token: bool  # whether the hub shows it to accounts only


def find_model(name: str, *, weights: bool = True, file: str = "") -> Path:
    """Return the directory of a model that is given as a path or a hub name.

    name: a hub name may end with a revision, NAME@REVISION
    weights: False where its weights may be absent
    file: the only file that is needed, such as a GGUF file; empty for a checkpoint

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
    """Whether a model's name is that of a GGUF file, by its suffix."""
    return name.endswith(".gguf")


def split_revision(name: str) -> tuple[str, str | None]:
    """Return a model's name and its revision on the hub; None without one, as of a directory."""
    repository, _, revision = name.partition("@")
    return (name, None) if not revision or Path(name).is_dir() else (repository, revision)


def pin_model(name: str) -> PinnedModel:
    """Return the current commit of a model on the hub, and whether reading it takes a token.

    Raises InvalidRequest for a directory, and for a model that this machine cannot read.
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
    """Return the commit of the model's name, read without the cache."""
    from huggingface_hub import hf_hub_download

    repository, revision = split_revision(name)
    with _hub_refusals(name), TemporaryDirectory(prefix="outrider-") as cache:
        config = hf_hub_download(
            repository, "config.json", revision=revision, cache_dir=cache, token=token
        )
        return Path(config).parent.name


@contextmanager
def _hub_refusals(name: str) -> Iterator[None]:
    """Raise InvalidRequest with the remedy where the hub refuses the model in this context."""
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
