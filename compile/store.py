"""Stores artefacts in a directory or on S3, under the hashes of their contents, for other machines.

    files/<SHA-256>            a file, stored once for all artefacts that have it
    manifests/<digest>.json    an artefact, written after its files

An artefact is executable code. To pull it, the digest of its manifest, which covers every file,
must be known from elsewhere. The artefact only appears after all files have been checked.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from compile.aws import Aws, aws_refusals, error_code
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import (
    MANIFEST,
    Manifest,
    check_files,
    hash_file,
    read_manifest,
    read_manifest_file,
)
from inference.files.writing import replacing

Say = Callable[[str], None]


class Objects(Protocol):
    """A store of named objects, which are written completely or not at all."""

    def has(self, name: str) -> bool: ...

    def put(self, name: str, path: Path) -> None:
        """Upload a file. The name depends on the content, so repeating this is harmless."""
        ...

    def get(self, name: str, path: Path) -> None:
        """Download an object. Raises BadArtifact if it does not exist."""
        ...


def open_store(url: str) -> Objects:
    """Open the store at s3://BUCKET/PREFIX or in a directory."""
    if url.startswith("s3://"):
        return S3Objects(url)
    if "://" in url:
        raise InvalidRequest(f"{url}: a store is a directory or s3://BUCKET/PREFIX")
    return DiskObjects(Path(url))


def push(directory: Path, store: Objects, say: Say) -> str:
    """Store an artefact's files, then its manifest, and return its digest."""
    manifest = read_manifest(directory)
    check_files(directory, manifest)
    for index, (name, sha256) in enumerate(sorted(manifest.files.items()), 1):
        present = store.has(f"files/{sha256}")
        say(f"[{index}/{len(manifest.files)}] {name}: {'already there' if present else 'copying'}")
        if not present:
            store.put(f"files/{sha256}", directory / name)
    store.put(f"manifests/{manifest.digest()}.json", directory / MANIFEST)
    return manifest.digest()


def pull(store: Objects, digest: str, directory: Path, say: Say) -> Manifest:
    """Download the artefact whose manifest has this digest. `directory` only appears after all
    files have been checked.
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
    manifest = fetch_manifest(store, digest, partial)
    for index, (name, sha256) in enumerate(sorted(manifest.files.items()), 1):
        say(f"[{index}/{len(manifest.files)}] {name}")
        fetch_file(store, sha256, partial / name)
    check_files(partial, manifest)
    if directory.exists():
        directory.rmdir()
    partial.replace(directory)
    return manifest


class DiskObjects:
    """A store in a directory, which several machines may share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def put(self, name: str, path: Path) -> None:
        try:
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"{self._root} cannot be written: {error.strerror}") from error
        with replacing(self._root / name) as partial:
            shutil.copyfile(path, partial)

    def get(self, name: str, path: Path) -> None:
        try:
            shutil.copyfile(self._root / name, path)
        except FileNotFoundError as error:
            raise BadArtifact(f"{self._root} has no {name}") from error


class S3Objects:
    """A store at s3://BUCKET/PREFIX, by default with credentials and region from boto3. Every
    upload has SHA-256 checksums, which S3 verifies.
    """

    def __init__(self, url: str, aws: Aws | None = None) -> None:
        self._url, path = url, url.removeprefix("s3://").strip("/")
        self._bucket, _, prefix = path.partition("/")
        if not self._bucket:
            raise InvalidRequest(f"{url}: a store on S3 is s3://BUCKET or s3://BUCKET/PREFIX")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = (aws or Aws()).client("s3")

    def has(self, name: str) -> bool:
        return self._found(
            lambda: self._client.head_object(Bucket=self._bucket, Key=self._key(name))
        )

    def put(self, name: str, path: Path) -> None:
        checksum = {"ChecksumAlgorithm": "SHA256"}
        with aws_refusals(self._url):
            self._client.upload_file(str(path), self._bucket, self._key(name), ExtraArgs=checksum)

    def get(self, name: str, path: Path) -> None:
        place = self._bucket, self._key(name), str(path)
        if not self._found(lambda: self._client.download_file(*place)):
            raise BadArtifact(f"{self._url} has no {name}")

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _found(self, call: Callable[[], object]) -> bool:
        with aws_refusals(self._url):
            try:
                call()
            except self._client.exceptions.ClientError as error:
                if error_code(error) not in ("404", "NoSuchKey"):
                    raise
                return False
        return True


def _present(directory: Path, digest: str) -> Manifest:
    manifest = read_manifest(directory)
    if manifest.digest() != digest:
        raise InvalidRequest(
            f"--out {directory} holds another artefact, of digest {manifest.digest()}: name "
            "another directory"
        )
    check_files(directory, manifest)
    return manifest


def fetch_manifest(store: Objects, digest: str, directory: Path) -> Manifest:
    """Download the manifest with this digest. Raises BadArtifact if its digest differs."""
    with replacing(directory / MANIFEST) as partial:
        store.get(f"manifests/{digest}.json", partial)
        manifest = read_manifest_file(partial)
        if manifest.digest() != digest:
            raise BadArtifact(
                f"the store's manifests/{digest}.json has digest {manifest.digest()}: it was "
                "changed, nothing of it was loaded"
            )
    return manifest


def fetch_file(store: Objects, sha256: str, path: Path) -> None:
    """Download a file, unless an earlier, interrupted pull already has."""
    if path.is_file() and hash_file(path) == sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        store.get(f"files/{sha256}", partial)
        if hash_file(partial) != sha256:
            raise BadArtifact(
                f"{path.name}: the store's file is not the one that was built (its SHA-256 "
                "differs): nothing of it was loaded"
            )
