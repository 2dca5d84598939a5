"""What a build says while it runs, how it estimates the rest, and graphs built by processes."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compile.build.graph_processes import InProcesses, quiet_libraries
from compile.build.progress import BuildProgress, BuildTimes, live_progress
from inference.artifact import Bucket, check_files
from inference.errors import BadArtifact
from tests.support.artifacts import FakeBuilder, build, small_spec
from tests.support.refusals import assert_refused

NAMES = [bucket.name for bucket in small_spec().buckets]
STAGES = ["weights", *NAMES, "joint"]


def left_of(kept: BuildTimes, workers: int = 1) -> BuildProgress:
    left = BuildProgress(list[str]().append, kept)
    left.planned(STAGES, workers)
    return left


def test_a_graph_that_nobody_knows_is_expected_to_take_what_the_others_took() -> None:
    left = left_of(BuildTimes())
    left.finished("weights", 5.0, 0)
    assert left.seconds() is None, "no graph is known yet"
    left.finished(NAMES[0], 10.0, 0)
    left.present(NAMES[1])
    assert left.seconds() == 10.0 * (len(NAMES) - 2)


def test_times_of_earlier_builds_are_scaled_by_what_this_build_takes(tmp_path: Path) -> None:
    before = BuildTimes(tmp_path / "times.json")
    for index, name in enumerate(NAMES, 1):
        before.keep(name, 10.0 * index)
    left = left_of(BuildTimes(tmp_path / "times.json"))
    left.present("weights")
    assert left.seconds() == sum(10.0 * index for index in range(1, len(NAMES) + 1))
    left.finished(NAMES[0], 20.0, 0)
    assert left.seconds() == 2 * sum(10.0 * index for index in range(2, len(NAMES) + 1))


def test_workers_share_the_time_left(tmp_path: Path) -> None:
    before = BuildTimes(tmp_path / "times.json")
    for name in NAMES:
        before.keep(name, 10.0)
    kept = BuildTimes(tmp_path / "times.json")
    alone, shared = left_of(kept).seconds(), left_of(kept, 2).seconds()
    assert alone is not None
    assert shared == alone / 2


def test_times_of_another_model_are_not_taken_and_a_spoilt_file_is_none(tmp_path: Path) -> None:
    BuildTimes.of(tmp_path, small_spec(), "one").keep(NAMES[0], 1.0)
    assert BuildTimes.of(tmp_path, small_spec(), "one").before == {NAMES[0]: 1.0}
    assert BuildTimes.of(tmp_path, small_spec(), "another").before == {}
    assert BuildTimes.of(tmp_path, replace(small_spec(), dtype="bfloat16"), "one").before == {}
    for path in tmp_path.iterdir():
        path.write_text("[")
    assert BuildTimes.of(tmp_path, small_spec(), "one").before == {}


def test_a_second_build_says_what_is_left_from_the_times_of_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    for out in ("one", "two"):
        progress = BuildProgress(said.append, BuildTimes(tmp_path / "times.json"))
        build(tmp_path / out, progress=progress)
    first, second = said[: len(said) // 2], said[len(said) // 2 :]
    assert f"[2/{len(STAGES)}] {NAMES[0]} ..." in first
    assert f"[2/{len(STAGES)}] {NAMES[0]} ... about 1 s left" in second


def test_the_live_progress_leaves_a_line_for_each_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_progress(BuildTimes()) as live:
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
    builder = InProcesses(partial(Watched, **settings), 2, quiet=True)  # type: ignore[arg-type]
    assert_refused(lambda: build(tmp_path / "out", builder), shown, BadArtifact)
