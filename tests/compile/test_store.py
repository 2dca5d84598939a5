"""Stores on disk and on S3: what comes out is what went in, or nothing comes out."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from compile.store import DiskObjects, Objects, build_key, open_store, pull, push
from inference.artifact import MANIFEST, check_files, read_manifest, write_manifest
from inference.errors import BadArtifact, InvalidRequest, MissingExtra, Unavailable
from tests.support.artifacts import FakeBuilder, build

URL = "s3://artefacts/some/prefix"


def silent(line: str) -> None:
    """Shows nothing."""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket that moto keeps; nothing leaves this machine."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(
        "botocore.httpsession.URLLib3Session.send",
        lambda *_: pytest.fail("a request left for the network"),
    )
    with moto.mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="artefacts")
        yield client


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return open_store(URL)
    return open_store(str(tmp_path / "store"))


def put(store: Objects, tmp_path: Path, name: str, content: bytes) -> None:
    """Overwrite an object, as someone with access to the store could."""
    path = tmp_path / "forged"
    path.write_bytes(content)
    store.put(name, path, hashlib.sha256(content).hexdigest())


def test_what_is_pulled_is_what_was_pushed(store: Objects, tmp_path: Path) -> None:
    manifest = build(tmp_path / "out")
    pushed = push(tmp_path / "out", store, silent)
    assert pushed.digest == pushed.first == manifest.digest()
    assert pull(store, pushed.digest, tmp_path / "new" / "taken", silent) == manifest
    assert read_manifest(tmp_path / "new" / "taken") == manifest
    check_files(tmp_path / "new" / "taken", manifest)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["taken"]


def test_the_first_of_two_builds_of_the_same_is_the_shared_one(
    store: Objects, tmp_path: Path
) -> None:
    manifest = build(tmp_path / "out")
    first = push(tmp_path / "out", store, silent)
    write_manifest(tmp_path / "out", replace(manifest, created="later"))
    second = push(tmp_path / "out", store, silent)
    assert second.first == first.digest != second.digest
    assert pull(store, second.digest, tmp_path / "taken", silent).created == "later"


def test_another_compiler_makes_another_build(tmp_path: Path) -> None:
    one, same, other = (
        build(tmp_path / "a"),
        build(tmp_path / "b"),
        build(tmp_path / "c", FakeBuilder(version="2")),
    )
    assert build_key(one) == build_key(same) != build_key(other)


def test_a_file_that_was_changed_in_the_store_is_not_taken(store: Objects, tmp_path: Path) -> None:
    manifest = build(tmp_path / "out")
    digest = push(tmp_path / "out", store, silent).digest
    put(store, tmp_path, f"files/{manifest.files['weights/all.bin']}", b"other weights")
    with pytest.raises(BadArtifact, match=r"all\.bin"):
        pull(store, digest, tmp_path / "taken", silent)
    assert not (tmp_path / "taken").exists()


def test_a_manifest_that_was_changed_in_the_store_is_not_taken(
    store: Objects, tmp_path: Path
) -> None:
    manifest = build(tmp_path / "out")
    digest = push(tmp_path / "out", store, silent).digest
    forged = json.loads((tmp_path / "out" / MANIFEST).read_text()) | {
        "files": {**manifest.files, "graphs/evil.so": "0" * 64}
    }
    put(store, tmp_path, f"manifests/{digest}.json", json.dumps(forged).encode())
    with pytest.raises(BadArtifact, match="loaded"):
        pull(store, digest, tmp_path / "taken", silent)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("../escaped", "/tmp/escaped", "graphs/../../escaped", "manifest.json", "a\\b", ""),
        *("x" * 5000, "x" * 256, "x/" * 600 + "y"),
    ],
    ids=str.__len__,
)
def test_a_manifest_cannot_name_files_outside_its_directory(tmp_path: Path, name: str) -> None:
    store = DiskObjects(tmp_path / "store")
    bad = replace(build(tmp_path / "out"), files={name: "0" * 64})
    write_manifest(tmp_path / "out", bad)
    put(
        store,
        tmp_path,
        f"manifests/{bad.digest()}.json",
        (tmp_path / "out" / MANIFEST).read_bytes(),
    )
    with pytest.raises(BadArtifact, match="not a file"):
        pull(store, bad.digest(), tmp_path / "taken", silent)
    with pytest.raises(BadArtifact, match="not a file"):
        push(tmp_path / "out", store, silent)


def test_a_push_that_was_broken_off_published_nothing(tmp_path: Path) -> None:
    class Failing(DiskObjects):
        def put(self, name: str, path: Path, sha256: str) -> None:
            if path.name == "all.bin":
                raise Unavailable("gone")
            super().put(name, path, sha256)

    manifest = build(tmp_path / "out")
    with pytest.raises(Unavailable):
        push(tmp_path / "out", Failing(tmp_path / "store"), silent)
    store, said = DiskObjects(tmp_path / "store"), list[str]()
    with pytest.raises(BadArtifact, match="has no manifests/"):
        pull(store, manifest.digest(), tmp_path / "taken", silent)
    push(tmp_path / "out", store, said.append)
    assert sum("already there" in line for line in said) == len(manifest.files) - 1


def test_a_pull_that_was_broken_off_fetches_only_the_rest(tmp_path: Path) -> None:
    class Flaky(DiskObjects):
        failing = True

        def get(self, name: str, path: Path) -> None:
            fetched.append(name)
            if self.failing and len(fetched) == 4:
                raise Unavailable("gone")
            super().get(name, path)

    fetched: list[str] = []
    manifest, store = build(tmp_path / "out"), Flaky(tmp_path / "store")
    digest = push(tmp_path / "out", store, silent).digest
    fetched.clear()
    with pytest.raises(Unavailable):
        pull(store, digest, tmp_path / "taken", silent)
    assert not (tmp_path / "taken").exists()
    store.failing = False
    fetched.clear()
    pull(store, digest, tmp_path / "taken", silent)
    assert len([name for name in fetched if name.startswith("files/")]) == len(manifest.files) - 2


def test_a_directory_with_something_else_in_it_is_not_pulled_into(tmp_path: Path) -> None:
    store = DiskObjects(tmp_path / "store")
    build(tmp_path / "out")
    digest = push(tmp_path / "out", store, silent).digest
    assert pull(store, digest, tmp_path / "out", silent).digest() == digest
    with pytest.raises(InvalidRequest, match="holds another artefact"):
        pull(store, "0" * 64, tmp_path / "out", silent)
    with pytest.raises(InvalidRequest, match="is not empty"):
        pull(store, digest, tmp_path / "checkpoint", silent)


@pytest.mark.parametrize("digest", ["", "abc", "Z" * 64, "../" * 22])
def test_a_digest_that_is_none_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        pull(DiskObjects(tmp_path), digest, tmp_path / "taken", silent)


def test_only_whole_artefacts_are_pushed(tmp_path: Path) -> None:
    build(tmp_path / "out")
    (tmp_path / "out" / "weights" / "all.bin").write_bytes(b"changed")
    with pytest.raises(BadArtifact, match="not the file"):
        push(tmp_path / "out", DiskObjects(tmp_path / "store"), silent)
    with pytest.raises(BadArtifact, match="artefact"):
        push(tmp_path / "checkpoint", DiskObjects(tmp_path / "store"), silent)


def test_large_files_go_up_in_parts_and_come_back_whole(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compile.s3._ONE_PUT", 8)
    manifest = build(tmp_path / "out")
    store = open_store("s3://artefacts")
    push(tmp_path / "out", store, silent)
    check_files(tmp_path / "taken", pull(store, manifest.digest(), tmp_path / "taken", silent))


def test_uploads_carry_checksums_and_the_manifest_follows_its_files(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", boto3.Session())
    boto3.DEFAULT_SESSION.events.register(
        "provide-client-params.s3.PutObject", lambda params, **_: written.append(params)
    )
    store = open_store(URL)
    manifest = build(tmp_path / "out")
    push(tmp_path / "out", store, silent)
    keys, hashes = (
        [params["Key"].split("/") for params in written],
        sorted(set(manifest.files.values())),
    )
    assert [key[:3] for key in keys] == [["some", "prefix", "files"]] * len(hashes) + [
        ["some", "prefix", "manifests"],
        ["some", "prefix", "builds"],
    ]
    assert (
        sorted(base64.b64decode(params["ChecksumSHA256"]).hex() for params in written[:-2])
        == hashes
        == sorted(key[3] for key in keys[:-2])
    )
    assert [params.get("IfNoneMatch") for params in written[-2:]] == ["*", "*"]


def test_a_bucket_that_is_not_there_is_named(s3: Any, tmp_path: Path) -> None:
    build(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"s3://nowhere: .*bucket"):
        push(tmp_path / "out", open_store("s3://nowhere"), silent)


def test_without_credentials_the_error_says_so(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    build(tmp_path / "out")
    with pytest.raises(Unavailable, match="credentials"):
        push(tmp_path / "out", open_store(URL), silent)


def test_s3_without_boto3_gets_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"pip install 'outrider\[aws\]'"):
        open_store(URL)


@pytest.mark.parametrize(
    ("url", "said"), [("s3://", "s3://BUCKET"), ("http://x/y", "a store is a directory or s3")]
)
def test_what_is_no_store_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        open_store(url)
