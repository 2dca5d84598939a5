"""What drafts on the client: loading it holds up neither the end of a text nor of a program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import InvalidRequest, OutriderError, Unavailable
from outrider.client.client import open_client
from outrider.client.drafting import DraftLoader
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import SharedClientRole, TargetRole
from outrider.processes import BACKGROUND
from outrider.target.spawn import role_environment
from outrider.target.target import load_target
from outrider.text.completion import silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import make_request
from tests.support.commands import Run
from tests.support.wire_fixtures import WAIT

TEXT = ["--max_new_tokens", "32", "--json", "--seed", "3", "--temperature", "0"]
SERVED = TargetRole(
    port=0, batch=2, sequence_length=256, emulate="llama-3.1-8b-trn1.2xlarge-measured"
)
"""A forward takes 37 ms: on a busy machine, too, copies come in time."""


def test_a_draft_that_cannot_be_loaded_ends_no_text(port: str, tmp_path: Path) -> None:
    draft = shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    with open_client(SharedClientRole(port=int(port), draft_model=str(draft))) as client:
        (draft / "model.safetensors").unlink()
        for _ in range(2):
            request = make_request(client.text_model, "def a(b):", Parameters(4, temperature=0))
            made = client.complete(request, silent, Event())
            assert (len(made.token_ids), made.drafted) == (4, False)
            with pytest.raises(OutriderError, match="safetensors"):
                client.wait()


def test_a_comparison_waits_for_the_draft(port: str, run: Run) -> None:
    (made,) = run("run", "def add(a, b):", "--port", port, *TEXT, "--baseline").records
    assert made["draft_calls"] > 0
    assert made["speedup"] is not None
    assert made["loading_seconds"] is None


def calls(address: str, tokens: int) -> int:
    """Calls of a loaded draft for a text of so many tokens."""
    with open_client(SharedClientRole(target_host=address)) as client:
        client.wait()
        request = make_request(client.text_model, "def a(b):", Parameters(tokens, temperature=0))
        return client.complete(request, silent, Event()).draft_calls


def test_a_draft_beside_its_target_is_silent_while_the_target_is_timed(port: str) -> None:
    served = TargetRole(port=0, batch=1, sequence_length=256)
    with BackgroundServer(load_target(served)) as server:
        assert calls(str(server.address), tokens=3) == 0
    assert calls(f"127.0.0.1:{port}", tokens=24) > 0, "an emulated target shares no device with it"


class Load:
    """Loads a draft as soon as the test allows it."""

    def __init__(self) -> None:
        self.allowed, self.left = Event(), Event()

    @contextmanager
    def __call__(self, rows: int) -> Iterator[str]:
        assert self.allowed.wait(WAIT)
        yield f"{rows} rows"
        self.left.set()


def test_a_draft_is_loaded_once_and_let_go_when_its_client_is_closed() -> None:
    load = Load()
    loader = DraftLoader(load)
    assert loader.wait(lambda: False) is None  # no text wants it any more
    assert loader.loading_seconds is not None
    load.allowed.set()
    loader.begin(5)
    assert loader.wait() == loader.loaded == "1 rows"
    assert loader.loading_seconds is None
    loader.close()
    assert load.left.is_set()
    load = Load()
    loader = DraftLoader(load)
    loader.begin(3)
    loader.close()
    assert not load.left.is_set()
    load.allowed.set()
    assert load.left.wait(WAIT)
    with pytest.raises(Unavailable, match="closed before"):
        loader.wait()


def test_an_error_of_loading_is_raised_to_everyone_who_asks() -> None:
    @contextmanager
    def fail(rows: int) -> Iterator[str]:
        raise InvalidRequest("no such draft")
        yield ""

    loader = DraftLoader(fail)
    loader.check()
    for ask in (loader.wait, loader.wait, loader.check):
        with pytest.raises(InvalidRequest):
            ask()
    assert loader.loaded is None
    loader.close()


def test_a_command_ends_with_its_own_code_while_a_draft_loads() -> None:
    code = (
        "import sys, threading, time\n"
        "from outrider.processes import leave\n"
        f"threading.Thread(target=time.sleep, args=(3600,), name={BACKGROUND!r}).start()\n"
        "print('text')\n"
        "sys.exit(leave(3))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=role_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT,
    )
    assert (made.returncode, made.stdout) == (3, "text\n")
