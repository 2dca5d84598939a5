"""Models on this machine, the pairs among them, and published drafts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from huggingface_hub import constants, file_download

from inference.errors import Mismatch
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.models.catalog.models_here import (
    ModelHere,
    PublishedModel,
    fetch,
    judged,
    models_below,
    published_for,
)
from outrider.models.found_model import EMBEDDED
from outrider.models.machine import memory_size
from tests.support.cloud import hub_server
from tests.support.commands import Run
from tests.support.wire_fixtures import describe, successor_engine


def test_models_are_listed_with_pairs_that_fit_or_the_reason_why_they_cannot_be_used(
    tmp_path: Path, run: Run
) -> None:
    for name in ("copy", "bare", "cut"):
        shutil.copytree(EMBEDDED / "draft", tmp_path / name)
        if name != "copy":
            (tmp_path / name / "model.safetensors").unlink()
    (tmp_path / "cut" / "model.safetensors").symlink_to(tmp_path / "not downloaded")
    listed = json.loads(run("list", "--json", "--directory", tmp_path).out)
    assert ["outrider-embedded-draft", "outrider-embedded-target"] in listed["pairs"]
    draft, target, *_ = listed["models"]
    assert draft["parameters"] < target["parameters"]
    refusals = {one["name"]: one["refusal"] for one in listed["models"]}
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


def here(name: str = "draft", **changes: Any) -> ModelHere:
    """A model on this machine."""
    return ModelHere(name, Path(name), 1000, 500_000_000, "t0")._replace(**changes)


def test_a_draft_of_another_tokenizer_or_of_the_targets_size_is_left_out() -> None:
    served = replace(describe(successor_engine()), model="acme-7b")
    assert judged(here(), served).refusal == ""
    assert "tokenizer" in judged(here(family="other"), served).refusal
    assert "half" in judged(here(parameters=4_000_000_000), served).refusal
    assert judged(here("acme-7b"), served).refusal
    assert "memory" in judged(here(size=int(0.6 * memory_size())), served).refusal
    assert judged(here(refusal="it has no weights"), served).refusal == "it has no weights"


def test_published_drafts_are_of_the_targets_family_smaller_and_not_here() -> None:
    found = published_for("Qwen/Qwen2.5-Coder-7B-Instruct", [])
    assert [one.megabytes for one in found] == sorted(one.megabytes for one in found)
    assert found[0].repository == "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
    assert all(one.millions <= 3500 for one in found)
    assert published_for("Qwen/Qwen2.5-Coder-0.5B", []) == []
    assert published_for("acme/acme-7b", []) == []
    for model in ("Qwen3-32B", "Llama-3.1-8B", "Mistral-Small-3.1-24B", "gemma-3-27b-it"):
        assert published_for(model, []), model
    first, *others = published_for("Qwen2.5-Coder-7B", [])
    again = here(str(Path("cache") / first.file), directory=Path("cache") / first.file)
    assert published_for("Qwen2.5-Coder-7B", [again]) == others


def test_a_draft_with_the_targets_tokenizer_is_fetched_and_a_gguf_file_with_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = PublishedModel("acme", "acme/open", 1, "float16", 1.2, "apache-2.0", 1024)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "draft.gguf").write_bytes(b"GGUF")
    cache, tokenizer = tmp_path / "hub", Tokenizer(EMBEDDED / "target").identity
    with hub_server({"acme/open": EMBEDDED / "draft", "acme/gguf": tmp_path / "gguf"}) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        with pytest.raises(Mismatch, match="acme/open is not downloaded"):
            fetch(draft, TokenizerIdentity("another"))
        assert not list(cache.glob("**/*.safetensors"))
        fetch(draft, tokenizer)
        assert list(cache.glob("**/*.safetensors"))
        gguf = replace(draft, repository="acme/gguf", file="draft.gguf", tokenizer=draft.repository)
        files = {path.name for path in fetch(gguf, tokenizer).parent.iterdir()}
    assert {"draft.gguf", "tokenizer.json"} <= files
