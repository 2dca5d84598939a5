"""Models of the hub by their commit, read from a stand-in that gates one of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from inference.model.checkpoints.hub import find_model, pin_model, split_revision
from tests.support.cloud import COMMIT, TOKEN, hub_server, use_hub
from tests.support.refusals import assert_refused

FILES = ("config.json", "model.safetensors", "tokenizer.json")
UNSAFE = ("pytorch_model.bin", "model.pt", "consolidated.00.safetensors")


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub as this process sees it: acme/open for everybody, acme/gated for who has TOKEN."""
    files = tmp_path / "files"
    files.mkdir()
    for name in (*FILES, *UNSAFE):
        (files / name).write_text("{}", encoding="ascii")
    models = {"acme/open": files, "acme/gated": files}
    with hub_server(models, gated="acme/gated") as address:
        use_hub(address, tmp_path, monkeypatch)
        yield


def test_a_model_is_pinned_to_the_commit_that_the_hub_has() -> None:
    assert pin_model("acme/open") == (f"acme/open@{COMMIT}", False)
    assert pin_model("acme/open@main") == (f"acme/open@{COMMIT}", False)


def test_a_gated_model_takes_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["acme/gated is gated", "accept its licence", "set HF_TOKEN"]
    for ask in (pin_model, find_model):
        assert_refused(partial(ask, "acme/gated"), refused)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert pin_model("acme/gated") == (f"acme/gated@{COMMIT}", True)
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert_refused(lambda: pin_model("acme/gated"), ["is gated"])


def test_a_model_at_a_commit_is_downloaded_by_name_and_revision_without_pickles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find_model(f"acme/open@{COMMIT}")
    assert found.name == COMMIT
    assert {path.name for path in found.iterdir()} == set(FILES)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert_refused(lambda: find_model("acme/open"), ["acme/open", "the hub cannot be reached"])


def test_a_name_that_is_no_model_is_refused() -> None:
    refused = ["acme/none: no such directory", "on the hub", "HF_TOKEN"]
    assert_refused(lambda: find_model("acme/none"), refused)
    assert_refused(lambda: find_model("not a model!"), ["no such directory", "on the hub"])
    for name in ("./absent", "/absent/model", "a/b/c"):  # these are not asked of the hub
        assert_refused(partial(find_model, name), [f"no such model directory: {name}"])


def test_a_directory_is_taken_as_it_is_also_with_an_at_sign(tmp_path: Path) -> None:
    there = tmp_path / "model@home"
    there.mkdir()
    assert find_model(str(there)) == there
    for name in (str(there), "acme/open@", "acme/open", "."):
        assert split_revision(name) == (name, None)
    assert_refused(lambda: pin_model(str(there)), ["lies on this machine"])
