"""Verbs list, pull and doctor: what is on this machine, which pairs fit, how far the target is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import outrider
from outrider.cli import main
from outrider.models.directories import EMBEDDED


def test_the_embedded_pair_is_listed_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert ["outrider-embedded-draft", "outrider-embedded-target"] in listed["pairs"]
    assert listed["models"][0]["parameters"] < listed["models"][1]["parameters"]


def test_a_model_that_cannot_be_used_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EMBEDDED / "draft", tmp_path / "copy")
    shutil.copytree(EMBEDDED / "draft", tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    shutil.copytree(EMBEDDED / "draft", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    (tmp_path / "cut" / "model.safetensors").symlink_to(tmp_path / "not downloaded")
    assert main(["list", "--json", "--directory", str(tmp_path)]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["models"]}
    assert listed[str(tmp_path / "copy")]["refusal"] == ""
    assert "No such file" in listed[str(tmp_path / "cut")]["refusal"]
    assert "safetensors" in listed[str(tmp_path / "bare")]["refusal"]


def test_pull_of_a_directory_checks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(EMBEDDED / "draft")]) == 0
    assert str(EMBEDDED / "draft") in capsys.readouterr().err
    assert main(["pull", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_what_is_not_in_the_cache_cannot_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--remove", "some/model"]) == 1
    assert "some/model" in capsys.readouterr().err


def test_doctor_says_what_draft_and_target_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    with outrider.serve(port=0, batch=1) as target:
        assert main(["doctor", "--target_host", target.address]) == 0
    told = capsys.readouterr().out
    for word in ("cores", "tokens/s alone", "round trip", "of a forward", "AWS"):
        assert word in told


def test_doctor_fails_without_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--target_host", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out
