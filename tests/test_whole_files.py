"""Where nothing more can be written, what was there stays whole and nothing is left beside it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from compile.store import DiskObjects, pull, push
from inference.command import FAILED, run_command
from inference.files.artifact import read_manifest, write_manifest
from inference.files.writing import replacing, write_whole
from inference.planner.acceptance import read_acceptance, write_acceptance
from inference.times_file import StoredTimes
from tests.support.artifacts import build

ROOM = 50
"""Bytes of each file that can be written."""


@contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def keep_times(directory: Path) -> None:
    StoredTimes(directory, "draft", "a draft", {"device": "cpu"}).store({(1, 1): 0.5})


def keep_learned(directory: Path) -> None:
    write_acceptance(read_acceptance(), directory / "pair.json")


def keep_object(directory: Path) -> None:
    path = directory.parent / "large"
    if not path.exists():
        path.write_bytes(b"x" * 200)
    DiskObjects(directory).put("files/x", path)


@pytest.mark.parametrize("keep", [keep_times, keep_learned, keep_object])
def test_a_full_disk_leaves_no_temporary_file(keep: Callable[[Path], None], tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    directory.mkdir()
    (tmp_path / "large").write_bytes(b"x" * 200)
    with full_disk(), suppress(OSError):
        keep(directory)
    assert contents(directory) == {}
    keep(directory)
    before = contents(directory)
    assert len(before) == 1
    with full_disk(), suppress(OSError):
        keep(directory)
    assert contents(directory) == before


def test_a_build_on_a_full_disk_leaves_no_temporary_file_and_the_manifest_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        build(tmp_path / "out")
    manifest = build(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert contents(tmp_path / "out").keys() <= whole.keys()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_manifest(tmp_path / "whole", manifest)
    assert contents(tmp_path / "whole") == whole


def test_a_full_disk_is_one_line_to_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> int:
        write_whole(tmp_path / "file", "x" * 200)
        return 0

    with full_disk():
        assert run_command(write, debug=False) == FAILED
    assert capsys.readouterr().err == "error: [Errno 27] File too large\n"


def test_a_pull_on_a_full_disk_leaves_whole_files_only(tmp_path: Path) -> None:
    build(tmp_path / "out")
    store = DiskObjects(tmp_path / "store")
    digest = push(tmp_path / "out", store, lambda line: None)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        pull(store, digest, tmp_path / "taken", lambda line: None)
    assert [kept for path in tmp_path.glob("taken*") for kept in contents(path)] == []
    pull(store, digest, tmp_path / "taken", lambda line: None)
    assert read_manifest(tmp_path / "taken").digest() == digest
    assert not list(tmp_path.glob("taken.*"))


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole_and_after_any_failure(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path):
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"file": b"old"}
    with replacing(path) as part:
        part.write_text("ne")
        assert path.read_text() == "old"
        part.write_text("new")
    assert contents(tmp_path) == {"file": b"new"}
