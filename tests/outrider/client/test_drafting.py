"""What drafts on the client, as --draft says: a model, copied text, or both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpc_comm.server.server import BackgroundServer
from outrider.cli import main
from outrider.models.directories import EMBEDDED
from outrider.options.roles import TargetRole
from outrider.target.target import load_target

PROMPT = "".join(f"def {name}(a, b):\n    return a + b\n\n\n" for name in ("add", "plus", "sum"))


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with target() as port:
        yield port


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """The port of a target that takes 37 ms for a forward: on a busy machine, too, copies come in
    time.
    """
    with target(emulate="llama-3.1-8b-trn1.2xlarge-measured") as port:
        yield port


@contextmanager
def target(**options: Any) -> Iterator[str]:
    served = load_target(TargetRole(port=0, batch=2, sequence_length=256, **options))
    with BackgroundServer(served) as server:
        yield str(server.address.port)


def texts(port: str, capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    command = ["--role", "draft", "--port", port, "--max_new_tokens", "32", "--json"]
    assert main([*command, "--seed", "3", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("temperature", ["0", "0.7", "1"])
@pytest.mark.parametrize("draft", ["none", "model", "model,copy"])
def test_whatever_drafts_the_text_is_the_targets_own(
    port: str, capsys: pytest.CaptureFixture[str], draft: str, temperature: str
) -> None:
    flags = ["--prompt", PROMPT, "--temperature", temperature, "--draft", draft, "--baseline"]
    (record,) = texts(port, capsys, *flags)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert set(record["accepted_by"]) <= {*draft.replace("none", "copy").split(",")}
    if draft == "none":
        assert record["draft_calls"] == 0


@pytest.mark.parametrize("prompt", ["def add(a, b):", PROMPT])
@pytest.mark.parametrize("rounds", [[], ["--gamma", "3"]])
def test_a_text_may_be_longer_than_the_drafts_context(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], prompt: str, rounds: list[str]
) -> None:
    """Of the second prompt the draft sees nothing, of the first text less than a half."""
    short = shutil.copytree(EMBEDDED / "draft", tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    flags = ["--prompt", prompt, "--draft_model", str(short), "--baseline", *rounds]
    (record,) = texts(port, capsys, *flags)
    assert len(record["token_ids"]) == 32
    assert record["token_ids"] == record["baseline"]["token_ids"]


def test_a_draft_that_cannot_be_loaded_ends_no_text_and_fails_the_command(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = shutil.copytree(EMBEDDED / "draft", tmp_path / "spoilt")
    weights = spoilt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    command = ["--role", "draft", "--port", port, "--max_new_tokens", "32", "--json"]
    flags = ["--prompt", PROMPT, "--draft_model", str(spoilt), "--baseline"]
    assert main([*command, *flags]) == 1
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert (record["finish_reason"], record["draft_calls"]) == ("length", 0)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert [line.split(":")[0] for line in said.err.splitlines() if "safetensors" in line] == [
        "note",
        "error",
    ]


def test_copies_alone_make_a_text_that_repeats_itself_in_fewer_forwards(
    slow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = texts(slow, capsys, "--prompt", PROMPT, "--draft", "none")
    assert record["accepted_by"]["copy"] > 0
    assert record["forwards"] < len(record["token_ids"])


def test_earlier_texts_of_a_run_are_copied_where_that_is_asked(
    slow: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("import argparse\nimport argparse\n".replace("\n", " again\n"))
    flags = ["--prompt_text", str(file), "--batch", "1", "--draft", "none", "--seed", "3"]
    fresh = texts(slow, capsys, *flags)[1]
    kept = texts(slow, capsys, *flags, "--copy_history")[1]
    assert kept["token_ids"] == fresh["token_ids"]
    assert kept["forwards"] < fresh["forwards"]
