"""What a build prints while it runs, and graphs built by processes."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial
from pathlib import Path

import pytest

from compile.build.graph_processes import InProcesses, quiet_libraries
from compile.build.progress import BuildProgress, live_progress
from inference.errors import BadArtifact
from inference.files.artifact import Bucket, check_files
from tests.support.artifacts import FakeBuilder, build, small_spec
from tests.support.refusals import assert_refused

NAMES = [bucket.name for bucket in small_spec().buckets]
STAGES = ["weights", *NAMES, "joint"]


def test_a_line_says_when_a_stage_starts_and_when_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    build(tmp_path / "out", progress=BuildProgress(said.append))
    assert said[2] == f"[2/{len(STAGES)}] {NAMES[0]} ..."
    assert said[3].startswith(f"[2/{len(STAGES)}] {NAMES[0]}: 0.")
    assert len(said) == 2 * len(STAGES)


def test_the_live_progress_leaves_a_line_for_each_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_progress() as live:
        build(tmp_path / "out", progress=live)
    shown = capsys.readouterr().err
    for index, stage in enumerate(STAGES, 1):
        assert f"[{index}/{len(STAGES)}] {stage}: 0.0 s" in shown


def test_quiet_libraries_still_tell_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    levels = {name: logging.getLogger(name).level for name in ("torch", "absl")}
    with warnings.catch_warnings(record=True) as told:
        quiet_libraries()
        warnings.warn("deprecated", FutureWarning, stacklevel=1)
    assert told == []
    assert not logging.getLogger("torch._inductor").isEnabledFor(logging.WARNING)
    assert logging.getLogger("torch._inductor").isEnabledFor(logging.ERROR)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class Watched(FakeBuilder):
    """Writes the number of its process beside each graph."""

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        if bucket.name == self.broken:
            raise BadArtifact(f"graph {bucket.name} was not compiled")
        if self.version == "dies":
            os._exit(9)
        (directory / f"{bucket.name}.pid").write_text(str(os.getpid()))
        return super().build(bucket, directory)


def test_graphs_built_by_processes_are_those_of_one_builder(tmp_path: Path) -> None:
    manifest = build(tmp_path / "out", InProcesses(Watched, 2, quiet=True))
    check_files(tmp_path / "out", manifest)
    assert manifest.files == build(tmp_path / "other").files
    processes = {path.read_text() for path in (tmp_path / "out").glob("*.pid")}
    assert str(os.getpid()) not in processes
    assert 1 <= len(processes) <= 2


@pytest.mark.parametrize(
    ("settings", "shown"),
    [({"broken": NAMES[1]}, ["was not compiled"]), ({"version": "dies"}, ["taskset"])],
)
def test_what_goes_wrong_in_a_process_is_an_error_here(
    tmp_path: Path, settings: dict[str, str], shown: list[str]
) -> None:
    builder = InProcesses(partial(Watched, **settings), 1, quiet=True)  # type: ignore[arg-type]
    assert_refused(lambda: build(tmp_path / "out", builder), shown, BadArtifact)
