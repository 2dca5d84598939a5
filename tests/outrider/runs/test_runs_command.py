"""`outrider runs` makes the runs of a file, and every result can be made again from its options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpc_comm.server.server import BackgroundServer
from outrider.cli import main
from outrider.options.roles import TargetRole
from outrider.target.target import load_target

RUNS = """
flags: {{prompt: "def f(", max_new_tokens: 6, port: {port}}}
runs:
  - {{name: alone, preset: vanilla}}
  - {{name: copied, preset: suffix, temperature: [0, 1]}}
  - {{name: lost, port: 1, patience: 0}}
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with BackgroundServer(load_target(TargetRole(port=0, batch=1, sequence_length=64))) as server:
        yield server.address.port


def texts(directory: Path) -> list[list[int]]:
    records: list[dict[str, Any]] = json.loads((directory / "outrider-profile.json").read_text())
    return [record["token_ids"] for record in records]


def test_a_sweep_makes_its_runs_and_each_can_be_made_again_from_its_options(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS.format(port=port))
    assert main(["runs", str(tmp_path / "runs.yaml"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "error: lost: " in said
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"alone", "copied-temperature=0", "copied-temperature=1"}
    assert texts(tmp_path / "out" / "alone") == texts(tmp_path / "out" / "copied-temperature=0")
    sampled = tmp_path / "out" / "copied-temperature=1"
    again = ["--config", str(sampled / "outrider-options.json"), "--profile"]
    assert main([*again, str(tmp_path / "again")]) == 0
    assert texts(tmp_path / "again") == texts(sampled)
    stored = [
        json.loads((one / "outrider-options.json").read_text())
        for one in (sampled, tmp_path / "again")
    ]
    assert stored[0] == stored[1]
    assert stored[0]["preset"] == "suffix"
    assert stored[0]["seed"] is not None


def test_check_lists_the_runs_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS.format(port=1))
    assert main(["runs", str(tmp_path / "runs.yaml"), "--check"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == ["alone", "copied temperature=0", "copied temperature=1", "lost"]


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere.xml"])
def test_a_file_that_cannot_be_read_gets_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", f"/{name}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"/{name}" in line


def test_without_a_file_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runs"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--file" in line
