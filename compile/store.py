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

import base64
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from inference.artifact import (
    MANIFEST,
    Manifest,
    check_files,
    hash_file,
    read_manifest,
    read_manifest_file,
)
from inference.errors import BadArtifact, InvalidRequest, Unavailable
from inference.extras import require
from inference.files import replacing

Say = Callable[[str], None]
T = TypeVar("T")
_NOT_INPUTS = ("files", "created", "command", "model")
_ONE_PUT = 64 << 20
"""Files of more bytes than this are uploaded in parts."""
_REFUSALS = ["NoSuchBucket", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"]


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
    manifest = fetch_manifest(store, digest, partial)
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


class S3Objects:
    """Objects under s3://BUCKET/PREFIX, with credentials and region as boto3 finds them. Every
    upload carries SHA-256 checksums, which S3 compares with what arrives.
    """

    def __init__(self, url: str) -> None:
        self._url, path = url, url.removeprefix("s3://").strip("/")
        self._bucket, _, prefix = path.partition("/")
        if not self._bucket:
            raise InvalidRequest(f"{url}: a store on S3 is s3://BUCKET or s3://BUCKET/PREFIX")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = self._ask(lambda: import_module("boto3").client("s3"))

    def has(self, name: str) -> bool:
        of = {"Bucket": self._bucket, "Key": self._prefix + name}
        return self._ask(lambda: self._client.head_object(**of), absent=None) is not None

    def put(self, name: str, path: Path, sha256: str) -> None:
        if path.stat().st_size > _ONE_PUT:
            of = (str(path), self._bucket, self._prefix + name)
            more = {"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": sha256}}
            self._ask(lambda: self._client.upload_file(*of, ExtraArgs=more))
            return
        with path.open("rb") as body:
            self._ask(lambda: self._put(name, body, bytes.fromhex(sha256)))

    def put_once(self, name: str, content: bytes) -> bool:
        sha256, once = hashlib.sha256(content).digest(), {"IfNoneMatch": "*"}
        return self._ask(lambda: self._put(name, content, sha256, **once), absent=None) is not None

    def _put(self, name: str, body: Any, sha256: bytes, **more: str) -> Any:
        checksum = base64.b64encode(sha256).decode()
        where = {"Bucket": self._bucket, "Key": self._prefix + name}
        return self._client.put_object(**where, Body=body, ChecksumSHA256=checksum, **more)

    def get(self, name: str, path: Path) -> None:
        def download() -> bool:
            self._client.download_file(self._bucket, self._prefix + name, str(path))
            return True

        if not self._ask(download, absent=False):
            raise BadArtifact(f"{self._url} has no {name}")

    def _ask(self, call: Callable[[], T], **absent: T) -> T:
        """Make a call and translate its errors into ours. With `absent`, that value is returned
        where the object is missing, or exists already.
        """
        require("aws", "S3")
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return call()
        except (Boto3Error, BotoCoreError, ClientError) as error:
            response: dict[str, Any] = getattr(error, "response", None) or {}
            code = str(response.get("Error", {}).get("Code", ""))
            if absent and code in ("404", "NoSuchKey", "412", "PreconditionFailed"):
                return absent["absent"]
            if code in _REFUSALS:
                raise InvalidRequest(f"{self._url}: S3 refuses ({error})") from error
            raise Unavailable(f"{self._url}: {error}") from error


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


def fetch_manifest(store: Objects, digest: str, directory: Path) -> Manifest:
    """Fetch the manifest of this digest into a directory. Raises BadArtifact for another one."""
    with replacing(directory / MANIFEST) as part:
        store.get(f"manifests/{digest}.json", part)
        manifest = read_manifest_file(part)
        if manifest.digest() != digest:
            raise BadArtifact(
                f"the store's manifests/{digest}.json has digest {manifest.digest()}: it was "
                "changed, nothing of it was loaded"
            )
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
