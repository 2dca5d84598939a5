"""The command line as a user types it, against a real target on loopback with the embedded pair."""

from __future__ import annotations

import csv
import json
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import moto
import pytest

import outrider
from grpc_comm.certificate import make_certificate
from grpc_comm.security import SecurityOptions
from inference.errors import Unavailable
from outrider.doctor import check_credentials
from outrider.draft_methods import find_draft
from outrider.options.roles import DraftRole, TargetRole
from outrider.terminal import generate
from outrider.text.completion import Completion, Request, Show, new_completion
from outrider.text.pieces import Piece
from outrider.text.prompts import TextModel, make_requests
from tests.support.commands import Run
from tests.support.repository import ROOT
from tests.support.wire_fixtures import background, free_port, successor_engine

PROMPT = "def read_lines(path):"
WAITS = ["--tree_nodes", "16"]
FIELDS = {
    "index", "prompt", "text", "token_ids", "seed", "forwards", "lone_forwards", "nodes",
    "draft_calls", "draft_seconds", "messages_up", "share_seconds", "num_draft_tokens",
    "num_accepted_tokens", "acceptance_length", "accepted_by",
    "bytes_up", "bytes_down", "seconds",
}  # fmt: skip
SERVED = TargetRole(port=0, batch=2)


@pytest.mark.parametrize(
    ("sampling", "drafting"),
    [
        ("--temperature 0", WAITS),
        ("--temperature 0", ["--gamma", "0"]),
        ("--temperature 1 --top_p 0", []),
        ("--temperature 1 --top_p 0.9 --seed 5 --regex ([a-f]{2,9}-[0-9]+-)+", []),
        ("--seed 6", []),
    ],
)
def test_a_drafted_text_is_the_text_of_the_target_alone(
    run: Run, port: str, sampling: str, drafting: list[str]
) -> None:
    text = ["--prompt", PROMPT, "--max_new_tokens", "16", "--json", *sampling.split()]
    made = run("run", "--port", port, *text, *drafting)
    (ours,), (theirs,) = made.records, run("verify_target", *text).records
    assert made.code == 0
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["text"] == theirs["text"]
    assert ours.keys() == theirs.keys()
    assert ours.keys() >= FIELDS
    if drafting == WAITS:  # else the target may be done before the draft's first call
        assert ours["draft_calls"] > 0
    assert theirs["forwards"] == theirs["lone_forwards"] == len(ours["token_ids"])


def test_text_goes_to_stdout_and_the_report_with_limits_and_price_to_stderr(
    run: Run, port: str
) -> None:
    flags = ["--prompt", PROMPT, "--max_new_tokens", "60", "--draft", "copy"]
    made = run("run", "--port", port, *flags, "--usd_per_hour", "1.5", "--baseline")
    assert made.code == 0
    report = ["acceptance length", "target-only", "identical texts: 1 of 1", "limited by"]
    assert all(words in made.err for words in (*report, "round trip", "a million tokens"))
    assert not [word for word in ("tokens", "limited by", "\x1b") if word in made.out]
    assert "speed-up" not in run("run", "--port", port, *flags).err, "nothing was compared"


def test_prompts_of_a_file_come_out_in_order_with_their_own_seeds(
    run: Run, port: str, tmp_path: Path
) -> None:
    prompts = ["import os", "class A:", "def f(x):", "x = 1", "try:"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n\n")
    file = ["--prompt_text", tmp_path / "prompts.txt"]
    flags = ["--port", port, "--max_new_tokens", "12", "--temperature", "0.9", "--json"]
    made = run("run", *file, "--seed", "100", *flags).records
    assert [(done["index"], done["prompt"], done["seed"]) for done in made] == [
        (i, prompt, 100 + i) for i, prompt in enumerate(prompts)
    ]
    (single,) = run("run", prompts[3], "--seed", "103", *flags).records
    assert single["token_ids"] == made[3]["token_ids"]
    lines = run("run", *file, "--port", port, "--max_new_tokens", "3").out.splitlines()
    labels = [f"--- {number}/5: {prompt}" for number, prompt in enumerate(prompts, 1)]
    assert [line for line in lines if line.startswith("--- ")] == labels


def test_a_random_seed_is_printed_and_reproduces_the_text_and_is_in_the_profile(
    run: Run, port: str, tmp_path: Path
) -> None:
    flags = [PROMPT, "--port", port, "--max_new_tokens", "12", "--temperature", "1", "--json"]
    made = run("run", *flags, "--profile", tmp_path)
    (first,) = made.records
    assert f"seed {first['seed']}" in made.err
    (again,) = run("run", *flags, "--seed", first["seed"]).records
    assert again["token_ids"] == first["token_ids"]
    (record,) = json.loads((tmp_path / "outrider-profile.json").read_text())
    assert record["seed"] == first["seed"]
    (row,) = csv.DictReader((tmp_path / "outrider-profile.csv").open())
    assert float(row["seconds"]) == pytest.approx(record["seconds"])
    assert int(row["forwards"]) == record["forwards"] == first["forwards"]


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_text_that_fails_is_printed_as_far_as_it_was_verified(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    options = DraftRole(prompt=PROMPT, json=as_json)
    tokenizer = find_draft(options).tokenizer
    (request,) = make_requests(TextModel("", tokenizer, 64, frozenset()), options, [PROMPT])

    def fail(request: Request, show: Show, cancelled: Event) -> Completion:
        show(Piece("verified"))
        done = new_completion(request, Unavailable("the target\x1b[2J went away"))
        return replace(done, text="verified", token_ids=[7, 8])

    assert generate.run(options, [request], fail, workers=1) == 1
    out, err = capsys.readouterr()
    assert "verified" in out
    assert "error: prompt 0: the target [2J went away" in err
    if as_json:
        assert json.loads(out)["token_ids"] == [7, 8]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "--prompt"),
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "x", "--prompt_text", "f"], "both were given"),
        (["--prompt_text", "/nowhere.txt"], "/nowhere.txt"),
        (["--prompt", "x " * 3000], "sequence length is 1024"),
        (["--prompt", "x", "--sequence_length", "5000"], "max_position_embeddings"),
        (["--prompt", "x", "--draft_model", "/nowhere/model"], "/nowhere/model"),
        (["--prompt", "x", "--device", "neuron"], "neuron"),
        (["--prompt", "x", "--instance", "trn9.foo"], "trn9.foo"),
    ],
)
def test_bad_input_gets_one_clear_line_and_a_non_zero_exit(
    run: Run, port: str, arguments: list[str], shown: str
) -> None:
    ended = run("run", "--port", port, *arguments)
    ended.assert_failed(shown)
    assert ended.out == ""
    assert "indexing errors" not in ended.err


@pytest.mark.parametrize("words", ["run --prompt x", "chat"])
def test_where_no_target_listens_here_it_is_said_before_a_program_is_imported(
    words: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.cli.PROGRAMS", {})
    ended = run(*words.split(), "--port", "1")
    ended.assert_failed("no Outrider target answers at 127.0.0.1:1: connection refused")
    ended.assert_failed("`outrider target --port 1`")


def test_a_target_that_cannot_listen_or_may_not_is_refused_before_anything_is_loaded(
    run: Run, port: str
) -> None:
    run("target", "--host", "0.0.0.0", "--port", "0").assert_failed("--tls_cert")
    ended = run("target", "--port", port)
    ended.assert_failed(f"127.0.0.1:{port}: Address already in use")
    assert len(ended.err.splitlines()) == 1


def begun(port: str, *flags: str) -> subprocess.Popen[str]:
    """A draft whose first character has been read."""
    command = [sys.executable, str(ROOT / "main.py"), "--role", "draft", "--port", port]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, "--prompt", PROMPT, *flags], text=True, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    return process


def test_where_nobody_reads_the_text_the_draft_ends_without_a_word(port: str) -> None:
    process = begun(port, "--max_new_tokens", "900", "--draft", "copy")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(timeout=30) == 141
    assert "Traceback" not in said
    assert "Broken" not in said


def test_interrupting_a_draft_ends_it_cleanly_with_what_was_made(port: str) -> None:
    process = begun(port, "--max_new_tokens", "1000", "--gamma", "1")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err
    assert "forward passes" in err


def test_an_interrupt_while_packages_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "outrider.cli", Interrupting("outrider.cli"))
    program = runpy.run_path(str(ROOT / "outrider" / "__main__.py"))
    assert program["main"]() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


HEALTH = ["doctor", "--health", "--port"]


@pytest.mark.usefixtures("aws_keys")
def test_credentials_name_their_account_and_missing_ones_are_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with moto.mock_aws():
        found = check_credentials()
    assert (found.severity, found.text) == ("fine", "AWS account 123456789012, region us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    found = check_credentials()
    assert found.severity == "warning"
    assert "aws configure" in found.text


def test_doctor_says_what_draft_and_target_can_do_and_fails_without_a_target(run: Run) -> None:
    with outrider.serve(port=0, batch=1) as target:
        told = run("doctor", "--target_host", target.address)
    assert told.code == 0
    for word in ("cores", "tokens/s alone", "round trip", "of a forward", "AWS"):
        assert word in told.out
    away = run("doctor", "--target_host", "127.0.0.1:1")
    assert away.code == 1
    assert "127.0.0.1:1" in away.out


def test_a_target_that_takes_sessions_is_healthy_and_nobody_is_not(run: Run) -> None:
    with background(successor_engine()) as server:
        assert run(*HEALTH, server.address.port).code == 0
    away = run(*HEALTH, free_port(), "--json")
    (found,) = json.loads(away.out)["findings"]
    assert (away.code, found["severity"]) == (1, "fault")


def test_the_targets_own_certificate_is_trusted_whatever_its_name(tmp_path: Path, run: Run) -> None:
    ours, other = (
        make_certificate(tmp_path / folder, ["target.example.com"]) for folder in ("ours", "other")
    )
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("secret")
    security = SecurityOptions(tls_cert=ours.certificate, tls_key=ours.key, token_file=token)
    with background(successor_engine(), security=security) as server:
        for files, code in ((ours, 0), (other, 1), (None, 1)):
            proof = ["--tls_cert", files.certificate, "--tls_key", files.key] if files else []
            assert run(*HEALTH, server.address.port, *proof).code == code
