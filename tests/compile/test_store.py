"""Stores on disk and on S3: what comes out is what went in, or nothing comes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from compile.store import DiskObjects, Objects, open_store, pull, push
from inference.errors import BadArtifact, MissingExtra, Unavailable
from inference.files.artifact import MANIFEST, check_files, read_manifest, write_manifest
from tests.support.artifacts import build
from tests.support.refusals import assert_refused

URL = "s3://artefacts/some/prefix"


def silent(line: str) -> None:
    """Shows nothing."""


@pytest.fixture
def s3(aws_keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket that moto keeps; nothing leaves this machine."""
    moto = pytest.importorskip("moto")
    monkeypatch.setattr(
        "botocore.httpsession.URLLib3Session.send",
        lambda *_: pytest.fail("a request left for the network"),
    )
    with moto.mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="artefacts")
        yield client


@pytest.fixture
def disk(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "store")


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest) -> Objects:
    opened = request.getfixturevalue(request.param)
    return opened if isinstance(opened, DiskObjects) else open_store(URL)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The directory of a built artefact."""
    build(tmp_path / "out")
    return tmp_path / "out"


def put(store: Objects, tmp_path: Path, name: str, content: bytes) -> None:
    """Overwrite an object, as someone with access to the store could."""
    path = tmp_path / "forged"
    path.write_bytes(content)
    store.put(name, path)


def test_what_is_pulled_is_what_was_pushed(store: Objects, out: Path, tmp_path: Path) -> None:
    manifest, pushed = read_manifest(out), push(out, store, silent)
    assert pushed == manifest.digest()
    assert pull(store, pushed, tmp_path / "new" / "taken", silent) == manifest
    assert read_manifest(tmp_path / "new" / "taken") == manifest
    check_files(tmp_path / "new" / "taken", manifest)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["taken"]


@pytest.mark.parametrize(("forged", "shown"), [("file", "all.bin"), ("manifest", "loaded")])
def test_what_was_changed_in_the_store_is_not_taken(
    store: Objects, out: Path, tmp_path: Path, forged: str, shown: str
) -> None:
    digest, files = push(out, store, silent), read_manifest(out).files
    if forged == "file":
        put(store, tmp_path, f"files/{files['weights/all.bin']}", b"other weights")
    else:
        more = {"files": {**files, "graphs/evil.so": "0" * 64}}
        changed = json.loads((out / MANIFEST).read_text()) | more
        put(store, tmp_path, f"manifests/{digest}.json", json.dumps(changed).encode())
    taken = tmp_path / "taken"
    assert_refused(lambda: pull(store, digest, taken, silent), [shown], BadArtifact)
    assert not taken.exists()


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "/tmp/up",
        "graphs/../../up",
        "manifest.json",
        "a\\b",
        "",
        "x" * 256,
        "x/" * 600 + "y",
    ],
    ids=str.__len__,
)
def test_a_manifest_cannot_name_files_outside_its_directory(
    disk: DiskObjects, out: Path, tmp_path: Path, name: str
) -> None:
    bad = replace(read_manifest(out), files={name: "0" * 64})
    write_manifest(out, bad)
    put(disk, tmp_path, f"manifests/{bad.digest()}.json", (out / MANIFEST).read_bytes())
    for move in (
        lambda: pull(disk, bad.digest(), tmp_path / "taken", silent),
        lambda: push(out, disk, silent),
    ):
        assert_refused(move, ["not a file"], BadArtifact)


class Flaky(DiskObjects):
    """Breaks off at the object with this number."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.names, self.failing = list[str](), 0

    def put(self, name: str, path: Path) -> None:
        self._count(name)
        super().put(name, path)

    def get(self, name: str, path: Path) -> None:
        self._count(name)
        super().get(name, path)

    def _count(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.failing:
            raise Unavailable("gone")


def test_a_push_or_pull_that_was_broken_off_publishes_nothing_and_moves_only_the_rest(
    out: Path, tmp_path: Path
) -> None:
    store, manifest, said = Flaky(tmp_path / "store"), read_manifest(out), list[str]()
    pulling = partial(pull, store, manifest.digest(), tmp_path / "taken", silent)
    store.failing = 3
    with pytest.raises(Unavailable):
        push(out, store, silent)
    assert_refused(pulling, ["manifests/"], BadArtifact)
    push(out, store, said.append)
    assert sum("already there" in line for line in said) == 2
    store.names.clear()
    store.failing = 4
    with pytest.raises(Unavailable):
        pulling()
    assert not (tmp_path / "taken").exists()
    pulling()
    rest = [name for name in store.names[4:] if name.startswith("files/")]
    assert len(rest) == len(manifest.files) - 2


def test_what_is_no_store_digest_place_or_whole_artefact_is_refused(
    disk: DiskObjects, out: Path, tmp_path: Path
) -> None:
    digest, place = push(out, disk, silent), tmp_path / "checkpoint"
    assert pull(disk, digest, out, silent).digest() == digest
    assert_refused(lambda: pull(disk, "0" * 64, out, silent), [str(out), "another artefact"])
    assert_refused(lambda: pull(disk, digest, place, silent), [str(place), "not empty"])
    for word in ("", "abc", "Z" * 64, "../" * 22):
        taking = partial(pull, disk, word, tmp_path / "taken", silent)
        assert_refused(taking, [word, "64 hexadecimal digits"])
    (out / "weights" / "all.bin").write_bytes(b"changed")
    assert_refused(lambda: push(out, disk, silent), ["not the file"], BadArtifact)
    assert_refused(lambda: push(place, disk, silent), ["artefact"], BadArtifact)
    for url in ("s3://", "http://x/y"):
        assert_refused(partial(open_store, url), [url, "s3://BUCKET"])


@pytest.mark.usefixtures("s3")
def test_uploads_carry_checksums_and_the_manifest_follows_its_files(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []
    session, uploads = boto3.Session(), "provide-client-params.s3.PutObject"
    session.events.register(uploads, lambda params, **_: written.append(params))
    monkeypatch.setattr(boto3, "Session", lambda **_: session)
    digest, files = push(out, open_store(URL), silent), read_manifest(out).files
    *keys, last = (params["Key"].removeprefix("some/prefix/") for params in written)
    assert sorted(keys) == sorted(f"files/{sha256}" for sha256 in set(files.values()))
    assert last == f"manifests/{digest}.json"
    assert {params["ChecksumAlgorithm"] for params in written} == {"SHA256"}


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_and_missing_credentials_are_named(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = open_store("s3://nowhere")
    assert_refused(lambda: push(out, absent, silent), ["s3://nowhere", "bucket"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_refused(lambda: push(out, open_store(URL), silent), ["credentials"], Unavailable)


def test_s3_without_boto3_gets_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert_refused(lambda: open_store(URL), [".[aws]"], MissingExtra)
