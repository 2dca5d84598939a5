"""Keeps artefacts in a directory or on S3, under the hashes of their contents, for other machines
to take.

    files/<SHA-256>            a file, kept once for all artefacts that have it
    manifests/<digest>.json    an artefact, written after its files
    builds/<key>               digest of the first artefact that was pushed for these inputs

Later builds from the same inputs do not replace the first. An artefact is executable code. Whoever
pulls must know the digest of its manifest, which covers every file, from another place than the
store. Nothing is put in place before all of it is checked.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from inference.artifact import (
    MANIFEST,
    Manifest,
    check_files,
    hash_file,
    read_manifest,
    read_manifest_file,
)
from inference.errors import BadArtifact, InvalidRequest
from inference.files import replacing

Say = Callable[[str], None]
_NOT_INPUTS = ("files", "created", "command", "model")


class Objects(Protocol):
    """Named objects, each written whole or not at all."""

    def has(self, name: str) -> bool: ...

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Upload a file. Its content is known by its name, so writing it twice does no harm."""
        ...

    def put_once(self, name: str, content: bytes) -> bool:
        """Write an object. Returns false, and writes nothing, when an object of this name exists
        already.
        """
        ...

    def get(self, name: str, path: Path) -> None:
        """Download an object. Raises BadArtifact when there is none."""
        ...


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    digest: str  # the pushed artefact's
    first: str  # that of the artefact first pushed for these inputs; mostly equal


def open_store(url: str) -> Objects:
    """Open the store at s3://BUCKET/PREFIX or in a directory."""
    if url.startswith("s3://"):
        from compile.s3 import S3Objects

        return S3Objects(url)
    if "://" in url:
        raise InvalidRequest(f"{url}: a store is a directory or s3://BUCKET/PREFIX")
    return DiskObjects(Path(url))


def push(directory: Path, store: Objects, say: Say) -> Pushed:
    """Put an artefact into a store: its files, then the manifest, then the name that other builders
    look for.
    """
    manifest = read_manifest(directory)
    check_files(directory, manifest)
    for index, (name, sha256) in enumerate(sorted(manifest.files.items()), 1):
        present = store.has(f"files/{sha256}")
        say(f"[{index}/{len(manifest.files)}] {name}: {'already there' if present else 'copying'}")
        if not present:
            store.put(f"files/{sha256}", directory / name, sha256)
    digest = manifest.digest()
    store.put_once(f"manifests/{digest}.json", (directory / MANIFEST).read_bytes())
    build = f"builds/{build_key(manifest)}"
    return Pushed(digest, digest if store.put_once(build, digest.encode()) else _read(store, build))


def pull(store: Objects, digest: str, directory: Path, say: Say) -> Manifest:
    """Fetch the artefact whose manifest has this digest. `directory` appears only when every file
    was checked.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InvalidRequest(
            f"--digest {digest}: 64 hexadecimal digits are needed, as --push printed them"
        )
    if (directory / MANIFEST).is_file():
        return _present(directory, digest)
    if directory.exists() and any(directory.iterdir()):
        raise InvalidRequest(
            f"--out {directory} is not empty: an artefact is pulled into a directory of its own"
        )
    partial = directory.with_name(f"{directory.name}.{digest[:12]}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    manifest = _fetch_manifest(store, digest, partial)
    for index, (name, sha256) in enumerate(sorted(manifest.files.items()), 1):
        say(f"[{index}/{len(manifest.files)}] {name}")
        _fetch(store, sha256, partial / name)
    check_files(partial, manifest)
    if directory.exists():
        directory.rmdir()
    partial.replace(directory)
    return manifest


def find(manifest: Manifest, store: Objects) -> str | None:
    """Digest of the artefact that was pushed first for this manifest's inputs. It may be asked for
    before anything is built.
    """
    build = f"builds/{build_key(manifest)}"
    return _read(store, build) if store.has(build) else None


def build_key(manifest: Manifest) -> str:
    """Hash of an artefact's inputs. Two machines that build the same get the same hash, whatever
    bytes they made.
    """
    inputs = {name: value for name, value in asdict(manifest).items() if name not in _NOT_INPUTS}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


class DiskObjects:
    """A store in a directory, which several machines may share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def put(self, name: str, path: Path, sha256: str) -> None:
        self._make_room(name)
        with replacing(self._root / name) as partial:
            shutil.copyfile(path, partial)
            if hash_file(partial) != sha256:
                raise BadArtifact(f"{path} changed while it was copied: push it again")

    def put_once(self, name: str, content: bytes) -> bool:
        self._make_room(name)
        with tempfile.NamedTemporaryFile(dir=(self._root / name).parent, prefix=".") as partial:
            partial.write(content)
            partial.flush()
            try:
                # unlike a rename, fails when the name is taken
                (self._root / name).hardlink_to(partial.name)
            except FileExistsError:
                return False
        return True

    def get(self, name: str, path: Path) -> None:
        try:
            shutil.copyfile(self._root / name, path)
        except FileNotFoundError as error:
            raise BadArtifact(f"{self._root} has no {name}") from error

    def _make_room(self, name: str) -> None:
        try:
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"{self._root} cannot be written: {error.strerror}") from error


def _present(directory: Path, digest: str) -> Manifest:
    """The artefact that is in the directory already, if it is the one asked for."""
    manifest = read_manifest(directory)
    if manifest.digest() != digest:
        raise InvalidRequest(
            f"--out {directory} holds another artefact, of digest {manifest.digest()}: name "
            "another directory"
        )
    check_files(directory, manifest)
    return manifest


def _fetch_manifest(store: Objects, digest: str, directory: Path) -> Manifest:
    with replacing(directory / MANIFEST) as part:
        store.get(f"manifests/{digest}.json", part)
        manifest = read_manifest_file(part)
        if manifest.digest() != digest:
            found = f"the store's manifest has digest {manifest.digest()}, not {digest}"
            raise BadArtifact(f"{found}: it was changed, nothing of it was loaded")
    return manifest


def _fetch(store: Objects, sha256: str, path: Path) -> None:
    """Fetch one file, unless an earlier pull that was broken off has it."""
    if path.is_file() and hash_file(path) == sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        store.get(f"files/{sha256}", part)
        if hash_file(part) != sha256:
            raise BadArtifact(
                f"{path.name}: the store's file is not the one that was built (its SHA-256 "
                "differs): nothing of it was loaded"
            )


def _read(store: Objects, name: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "object"
        store.get(name, path)
        return path.read_text(encoding="utf-8")
