"""What drafts on the client: a model that cannot be loaded, and text that is copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import OutriderError
from outrider.client.client import open_client
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import SharedClientRole, TargetRole
from outrider.target.target import load_target
from outrider.text.completion import silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import make_request
from tests.support.commands import Run

TEXT = ["--max_new_tokens", "32", "--json", "--seed", "3", "--temperature", "0"]
SERVED = TargetRole(
    port=0, batch=2, sequence_length=256, emulate="llama-3.1-8b-trn1.2xlarge-measured"
)
"""A forward takes 37 ms: on a busy machine, too, copies come in time."""


def test_a_draft_that_cannot_be_loaded_ends_no_text(port: str, tmp_path: Path) -> None:
    draft = shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    with open_client(SharedClientRole(port=port, draft_model=str(draft))) as client:
        (draft / "model.safetensors").unlink()
        for _ in range(2):
            request = make_request(
                client.text_model, "def add(a, b):", Parameters(4, temperature=0)
            )
            made = client.complete(request, silent, Event())
            assert (len(made.token_ids), made.drafted) == (4, False)
            with pytest.raises(OutriderError, match="safetensors"):
                client.wait()


def test_a_comparison_waits_for_the_draft(port: str, run: Run) -> None:
    (made,) = run("run", "def add(a, b):", "--port", port, *TEXT, "--baseline").records
    assert made["draft_calls"] > 0
    assert made["speedup"] is not None
    assert made["loading_seconds"] is None


def test_a_draft_beside_its_target_is_silent_while_the_target_is_timed() -> None:
    served = TargetRole(port=0, batch=1, sequence_length=256)
    with BackgroundServer(load_target(served)) as server:
        assert calls(str(server.address.port), tokens=3) == 0


def test_an_emulated_target_shares_no_device_with_its_draft(port: str) -> None:
    assert calls(port, tokens=24) > 0


def calls(port: str, tokens: int) -> int:
    """Calls of a loaded draft for a text of so many tokens."""
    with open_client(SharedClientRole(port=port)) as client:
        client.wait()
        request = make_request(
            client.text_model, "def add(a, b):", Parameters(tokens, temperature=0)
        )
        return client.complete(request, silent, Event()).draft_calls
