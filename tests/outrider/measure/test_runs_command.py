"""`outrider runs` makes the runs of a file, and every result can be made again from its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.options.roles import TargetRole
from tests.support.commands import Run

RUNS = """
flags: {{prompt: "def f(", max_new_tokens: 6, port: {port}}}
runs:
  - {{name: alone, preset: vanilla, temperature: 0}}
  - {{name: copied, preset: suffix, temperature: [0, 1]}}
  - {{name: lost, port: 1, patience: 0}}
"""
SERVED = TargetRole(port=0, batch=1, sequence_length=64)


def texts(directory: Path) -> list[list[int]]:
    records: list[dict[str, Any]] = json.loads((directory / "outrider-profile.json").read_text())
    return [record["token_ids"] for record in records]


def test_a_sweep_makes_its_runs_and_each_can_be_made_again_from_its_options(
    port: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS.format(port=port))
    ended = run("runs", tmp_path / "runs.yaml", "--out", tmp_path / "out")
    ended.assert_failed("error: lost: ")
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"alone", "copied-temperature=0", "copied-temperature=1"}
    assert texts(tmp_path / "out" / "alone") == texts(tmp_path / "out" / "copied-temperature=0")
    sampled = tmp_path / "out" / "copied-temperature=1"
    again = ["--config", sampled / "outrider-options.json", "--profile", tmp_path / "again"]
    assert run(*again).code == 0
    assert texts(tmp_path / "again") == texts(sampled)
    stored = [
        json.loads((one / "outrider-options.json").read_text())
        for one in (sampled, tmp_path / "again")
    ]
    assert stored[0] == stored[1]
    assert stored[0]["preset"] == "suffix"
    assert stored[0]["seed"] is not None


def test_check_lists_the_runs_and_makes_none(tmp_path: Path, run: Run) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS.format(port=1))
    listed = run("runs", tmp_path / "runs.yaml", "--check")
    names = ["alone", "copied temperature=0", "copied temperature=1", "lost"]
    assert (listed.code, listed.out.splitlines()) == (0, names)


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere.xml"])
def test_a_file_that_cannot_be_read_gets_one_line(name: str, run: Run) -> None:
    run("runs", f"/{name}").assert_failed(f"/{name}")
