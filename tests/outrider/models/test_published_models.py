"""Published drafts: which fit a target, and which are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, file_download

from grpc_comm.translate import Description
from inference.errors import Mismatch
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.models.catalog.models_here import ModelHere
from outrider.models.catalog.published_models import (
    PublishedModel,
    fetch,
    judged,
    published_for,
)
from outrider.models.directories import EMBEDDED
from tests.support.cloud import hub_server
from tests.support.wire_fixtures import describe, successor_engine

EMBEDDED_TOKENIZER = Tokenizer(EMBEDDED / "target").identity
OPEN = PublishedModel("acme", "acme/open", 1, "float16", 1.2, "apache-2.0", 1024)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub with two models; yields the cache, which is not there before something is fetched."""
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "draft.gguf").write_bytes(b"GGUF")
    models = {OPEN.repository: EMBEDDED / "draft", "acme/gguf": tmp_path / "gguf"}
    with hub_server(models) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield tmp_path / "hub"


def here(name: str = "draft", **changes: Any) -> ModelHere:
    """A model on this machine."""
    return ModelHere(name, Path(name), 1000, 500_000_000, "t0")._replace(**changes)


@pytest.fixture
def served() -> Description:
    """The description of a target that is called acme-7b."""
    engine = successor_engine()
    named = {**vars(describe(engine)), "model": "acme-7b"}
    return Description(**named)


def test_a_draft_of_another_tokenizer_or_of_the_targets_size_is_left_out(
    served: Description,
) -> None:
    assert judged(here(), served).refusal == ""
    assert "tokenizer" in judged(here(family="other"), served).refusal
    assert "half" in judged(here(parameters=4_000_000_000), served).refusal
    assert judged(here("acme-7b"), served).refusal
    assert "memory" in judged(here(size=2**50), served).refusal
    assert judged(here(refusal="it has no weights"), served).refusal == "it has no weights"


def test_published_drafts_are_of_the_targets_family_and_smaller() -> None:
    found = published_for("Qwen/Qwen2.5-Coder-7B-Instruct", [])
    assert [one.megabytes for one in found] == sorted(one.megabytes for one in found)
    assert found[0].repository == "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
    assert all(one.millions <= 3500 for one in found)
    assert published_for("Qwen/Qwen2.5-Coder-0.5B", []) == []
    assert published_for("acme/acme-7b", []) == []
    for model in ("Qwen3-32B", "Llama-3.1-8B", "Mistral-Small-3.1-24B", "gemma-3-27b-it"):
        assert published_for(model, []), model


def test_a_published_draft_that_is_here_is_not_offered_again() -> None:
    first, *others = published_for("Qwen2.5-Coder-7B", [])
    again = here(str(Path("cache") / first.file), directory=Path("cache") / first.file)
    assert published_for("Qwen2.5-Coder-7B", [again]) == others


def test_a_draft_with_the_targets_tokenizer_is_fetched(hub: Path) -> None:
    fetch(OPEN, EMBEDDED_TOKENIZER)
    assert list(hub.glob("**/*.safetensors"))


@pytest.mark.usefixtures("hub")
def test_a_gguf_file_is_fetched_with_its_checkpoints_tokenizer_beside() -> None:
    draft = replace(OPEN, repository="acme/gguf", file="draft.gguf", tokenizer=OPEN.repository)
    assert {"draft.gguf", "tokenizer.json"} <= {
        path.name for path in fetch(draft, EMBEDDED_TOKENIZER).parent.iterdir()
    }


def test_no_weights_of_another_tokenizer_are_fetched(hub: Path) -> None:
    with pytest.raises(Mismatch, match="acme/open is not downloaded"):
        fetch(OPEN, TokenizerIdentity("another"))
    assert not list(hub.glob("**/*.safetensors"))
