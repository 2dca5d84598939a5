"""Models of the hub by their commit, read from a stand-in that gates one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download

from inference.errors import InvalidRequest
from inference.model.hub import find_model, pin_model, split_revision
from outrider.models.directories import EMBEDDED
from tests.support.hub_server import COMMIT, TOKEN, hub_server


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub as this process sees it: acme/open for everybody, acme/gated for who has TOKEN."""
    models = {"acme/open": EMBEDDED / "target", "acme/gated": EMBEDDED / "target"}
    with hub_server(models, gated="acme/gated") as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield


@pytest.mark.usefixtures("hub")
def test_a_model_is_pinned_to_the_commit_that_the_hub_has() -> None:
    assert pin_model("acme/open") == (f"acme/open@{COMMIT}", False)
    assert pin_model("acme/open@main") == (f"acme/open@{COMMIT}", False)


@pytest.mark.usefixtures("hub")
def test_a_gated_model_takes_a_token_and_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidRequest, match=r"acme/gated is gated.*set HF_TOKEN"):
        pin_model("acme/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert pin_model("acme/gated") == (f"acme/gated@{COMMIT}", True)
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(InvalidRequest, match="is gated"):
        pin_model("acme/gated")


@pytest.mark.usefixtures("hub")
def test_a_model_at_a_commit_is_found_by_its_name_and_revision() -> None:
    found = find_model(f"acme/open@{COMMIT}")
    assert found.name == COMMIT
    assert (found / "config.json").is_file()


@pytest.mark.parametrize("name", ["acme/open@", "acme/open", "."])
def test_a_name_without_a_revision_stays_whole(name: str) -> None:
    assert split_revision(name) == (name, None)


def test_a_directory_with_an_at_sign_has_no_revision(tmp_path: Path) -> None:
    there = tmp_path / "model@home"
    there.mkdir()
    assert split_revision(str(there)) == (str(there), None)
    with pytest.raises(InvalidRequest, match=re.escape("lies on this machine")):
        pin_model(str(there))
