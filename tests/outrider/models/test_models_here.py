"""Verbs list, pull and doctor: what is on this machine, which pairs fit, how far the target is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import tokenizers

import outrider
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.models.catalog.models_here import models_below
from outrider.models.found_model import EMBEDDED
from tests.support.commands import Run


def test_the_embedded_pair_is_listed_and_fits(run: Run) -> None:
    listed = json.loads(run("list", "--json").out)
    assert ["outrider-embedded-draft", "outrider-embedded-target"] in listed["pairs"]
    assert listed["models"][0]["parameters"] < listed["models"][1]["parameters"]


def test_a_model_that_cannot_be_used_is_listed_with_the_reason(tmp_path: Path, run: Run) -> None:
    for name in ("copy", "bare", "cut"):
        shutil.copytree(EMBEDDED / "draft", tmp_path / name)
        if name != "copy":
            (tmp_path / name / "model.safetensors").unlink()
    (tmp_path / "cut" / "model.safetensors").symlink_to(tmp_path / "not downloaded")
    listed = json.loads(run("list", "--json", "--directory", tmp_path).out)["models"]
    refusals = {one["name"]: one["refusal"] for one in listed}
    assert refusals[str(tmp_path / "copy")] == ""
    assert "has no model.safetensors" in refusals[str(tmp_path / "cut")]
    assert "safetensors" in refusals[str(tmp_path / "bare")]


def test_a_draft_with_a_further_token_fits_as_it_does_where_it_connects(
    tmp_path: Path, run: Run
) -> None:
    shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    path = tmp_path / "draft" / "tokenizer.json"
    rules = tokenizers.Tokenizer.from_file(str(path))
    rules.add_tokens(["<more>"])
    rules.save(str(path))
    listed = json.loads(run("list", "--json", "--directory", tmp_path).out)
    families = {one["name"]: one["family"] for one in listed["models"]}
    target = "outrider-embedded-target"
    assert families[str(tmp_path / "draft")] != families[target]
    assert [str(tmp_path / "draft"), target] in listed["pairs"]
    target_settings = Tokenizer(EMBEDDED / "target").settings
    (draft,) = models_below([tmp_path])
    assert draft.drafts_for(TokenizerIdentity("", target_settings))
    assert not draft.drafts_for(TokenizerIdentity("", replace(target_settings, cores=["another"])))


def test_pull_of_a_directory_checks_it(tmp_path: Path, run: Run) -> None:
    pulled = run("pull", EMBEDDED / "draft")
    assert pulled.code == 0
    assert str(EMBEDDED / "draft") in pulled.err
    run("pull", tmp_path).assert_failed(str(tmp_path))


def test_doctor_says_what_draft_and_target_can_do_and_fails_without_a_target(run: Run) -> None:
    with outrider.serve(port=0, batch=1) as target:
        told = run("doctor", "--target_host", target.address)
    assert told.code == 0
    for word in ("cores", "tokens/s alone", "round trip", "of a forward", "AWS"):
        assert word in told.out
    away = run("doctor", "--target_host", "127.0.0.1:1")
    assert away.code == 1
    assert "127.0.0.1:1" in away.out
