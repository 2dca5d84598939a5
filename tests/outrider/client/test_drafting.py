"""What drafts on the client: a model that cannot be loaded, and text that is copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event

import pytest

from outrider.client.client import open_client
from outrider.models.directories import EMBEDDED
from outrider.options.roles import SharedClientRole, TargetRole
from outrider.terminal.live_text import silent
from outrider.text.prompts import Parameters, make_request
from tests.support.commands import Run

TEXT = ["--max_new_tokens", "32", "--json", "--seed", "3", "--temperature", "0"]
SERVED = TargetRole(
    port=0, batch=2, sequence_length=256, emulate="llama-3.1-8b-trn1.2xlarge-measured"
)
"""A forward takes 37 ms: on a busy machine, too, copies come in time."""


def test_a_draft_that_cannot_be_loaded_ends_no_text_and_fails_the_command(
    port: str, tmp_path: Path, run: Run
) -> None:
    spoilt = shutil.copytree(EMBEDDED / "draft", tmp_path / "spoilt")
    weights = spoilt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    flags = ["--port", port, "--prompt", "def add(a, b):", "--draft_model", spoilt, "--baseline"]
    made = run("run", *TEXT, *flags)
    made.assert_failed("safetensors")
    record = json.loads(made.out)
    assert (record["finish_reason"], record["draft_calls"]) == ("length", 0)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    told = [line.split(":")[0] for line in made.err.splitlines() if "safetensors" in line]
    assert told == ["note", "error"]


def test_earlier_texts_of_a_run_are_copied_where_that_is_asked(
    port: str, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("import argparse again\n" * 2)
    flags = ["--port", port, "--prompt_text", file, "--batch", "1", "--draft", "none"]
    fresh = run("run", *TEXT, *flags).records[1]
    kept = run("run", *TEXT, *flags, "--copy_history").records[1]
    assert kept["token_ids"] == fresh["token_ids"]
    assert kept["forwards"] < fresh["forwards"]


@pytest.mark.parametrize(("is_local", "tokens"), [(None, 3), (True, 3), (False, 24)])
def test_only_beside_its_target_a_draft_is_silent_while_that_is_timed(
    port: str, is_local: bool | None, tokens: int
) -> None:
    with open_client(SharedClientRole(port=port), is_local=is_local) as client:
        client.wait()
        request = make_request(
            client, "def add(a, b):", Parameters(max_tokens=tokens, temperature=0)
        )
        made = client.complete(request, silent, Event())
    assert (made.draft_calls > 0) is (is_local is False)
