"""The command line as a user types it, against a real target on loopback with the embedded pair."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import Unavailable
from outrider.cli import main
from outrider.draft_methods import find_draft
from outrider.models.directories import EMBEDDED
from outrider.options.roles import ROLES, DraftRole, TargetRole
from outrider.target.spawn import target_process
from outrider.target.target import load_target
from outrider.terminal import generate
from outrider.text.completion import Completion, Piece, Request, Show, new_completion
from outrider.text.prompts import make_requests
from tests.support.repository import ROOT

MAIN = ROOT / "main.py"
PROMPT = "def read_lines(path):"
WAITS = ["--pace", "wait"]
FIELDS = {
    "index", "prompt", "text", "token_ids", "seed", "forwards", "lone_forwards", "nodes",
    "draft_calls", "draft_seconds", "messages_up", "share_seconds", "num_draft_tokens",
    "num_accepted_tokens", "acceptance_length", "accepted_by",
    "bytes_up", "bytes_down", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with BackgroundServer(load_target(TargetRole(port=0, batch=2))) as server:
        yield str(server.address.port)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def draft(capsys: pytest.CaptureFixture[str], port: str, *arguments: str) -> tuple[int, str, str]:
    return run(capsys, "--role", "draft", "--port", port, *arguments)


def records(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_help_names_every_role() -> None:
    said = subprocess.run(
        [sys.executable, str(MAIN), "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(role in said for role in ROLES)


@pytest.mark.parametrize(
    "sampling",
    [
        [],
        ["--temperature", "0.7", "--seed", "3"],
        ["--temperature", "1", "--top_p", "0.9", "--seed", "4"],
        WAITS,
    ],
)
def test_a_drafted_text_is_the_text_of_the_target_alone(
    capsys: pytest.CaptureFixture[str], port: str, sampling: list[str]
) -> None:
    flags = ["--prompt", PROMPT, "--max_new_tokens", "40", "--json", *sampling]
    code, drafted, _ = draft(capsys, port, *flags)
    alone = run(capsys, "--role", "verify_target", *[one for one in flags if one not in WAITS])[1]
    ours, theirs = records(drafted)[0], records(alone)[0]
    assert code == 0
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["text"] == theirs["text"]
    assert ours.keys() == theirs.keys()
    assert ours.keys() >= FIELDS
    if sampling == WAITS:  # else the target may be done before the draft's first call
        assert ours["draft_calls"] > 0  # type: ignore[operator]
    assert theirs["forwards"] == theirs["lone_forwards"] == len(ours["token_ids"])  # type: ignore[arg-type]


def test_text_goes_to_stdout_and_the_report_to_stderr(
    capsys: pytest.CaptureFixture[str], port: str
) -> None:
    code, out, err = draft(capsys, port, "--prompt", PROMPT, "--max_new_tokens", "20", "--baseline")
    assert code == 0
    assert "acceptance length" in err
    assert "speed-up" in err
    assert "identical texts: 1 of 1" in err
    assert "tokens" not in out
    assert "\x1b" not in out


def test_no_speed_up_is_claimed_without_a_baseline(
    capsys: pytest.CaptureFixture[str], port: str
) -> None:
    _, _, err = draft(capsys, port, "--prompt", PROMPT, "--max_new_tokens", "5")
    assert "speed-up" not in err


def test_prompts_of_a_file_come_out_in_order_with_their_own_seeds(
    capsys: pytest.CaptureFixture[str], port: str, tmp_path: Path
) -> None:
    prompts = ["import os", "class A:", "def f(x):", "x = 1", "try:"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n\n")
    flags = ["--max_new_tokens", "12", "--temperature", "0.9", "--json"]
    several = ["--prompt_text", str(tmp_path / "prompts.txt"), "--seed", "100"]
    code, out, _ = draft(capsys, port, *several, *flags)
    made = records(out)
    assert code == 0
    assert [(done["index"], done["prompt"], done["seed"]) for done in made] == [
        (i, prompt, 100 + i) for i, prompt in enumerate(prompts)
    ]
    single = records(draft(capsys, port, "--prompt", prompts[3], "--seed", "103", *flags)[1])
    assert single[0]["token_ids"] == made[3]["token_ids"]


def test_a_random_seed_is_printed_and_reproduces_the_text(
    capsys: pytest.CaptureFixture[str], port: str
) -> None:
    flags = ["--prompt", PROMPT, "--max_new_tokens", "12", "--temperature", "1", "--json"]
    _, out, err = draft(capsys, port, *flags)
    first = records(out)[0]
    assert f"seed {first['seed']}" in err
    assert (
        records(draft(capsys, port, *flags, "--seed", str(first["seed"]))[1])[0]["token_ids"]
        == first["token_ids"]
    )


@pytest.mark.parametrize(
    "tree",
    [
        ["--gamma", "3"],
        ["--tree_nodes", "6", "--tree_depth", "2"],
        ["--gamma", "0"],
        ["--pace", "wait"],
        ["--pace", "go_on"],
    ],
)
def test_any_tree_gives_the_same_text(
    capsys: pytest.CaptureFixture[str], port: str, tree: list[str]
) -> None:
    flags = ["--prompt", PROMPT, "--max_new_tokens", "15", "--json"]
    assert (
        records(draft(capsys, port, *flags, *tree)[1])[0]["token_ids"]
        == records(draft(capsys, port, *flags)[1])[0]["token_ids"]
    )


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_text_that_fails_is_printed_as_far_as_it_was_verified(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    options = DraftRole(prompt=PROMPT, json=as_json)
    tokenizer = find_draft(options).tokenizer
    (request,) = make_requests(options.text, [PROMPT], tokenizer, 64, frozenset())

    def fail(request: Request, show: Show, cancelled: Event) -> Completion:
        show(Piece("verified"))
        done = new_completion(request, Unavailable("the target\x1b[2J went away"))
        return replace(done, text="verified", token_ids=[7, 8])

    code = generate.run(options, [request], fail, workers=1)
    out, err = capsys.readouterr()
    assert code == 1
    assert "verified" in out
    assert "error: prompt 0: the target [2J went away" in err
    if as_json:
        assert records(out)[0]["token_ids"] == [7, 8]


def test_what_limits_a_text_is_explained_at_its_end(
    capsys: pytest.CaptureFixture[str], port: str
) -> None:
    flags = ["--prompt", PROMPT, "--max_new_tokens", "20", "--explain", "--usd_per_hour", "1.5"]
    code, out, err = draft(capsys, port, *flags)
    assert code == 0
    assert "limited by" in err
    assert "a million tokens" in err
    assert "limited by" not in out


def test_the_profile_has_numeric_columns(
    capsys: pytest.CaptureFixture[str], port: str, tmp_path: Path
) -> None:
    draft(capsys, port, "--prompt", PROMPT, "--max_new_tokens", "8", "--profile", str(tmp_path))
    rows = list(csv.DictReader((tmp_path / "outrider-profile.csv").open()))
    assert float(rows[0]["seconds"]) > 0
    assert (
        int(rows[0]["forwards"])
        == json.loads((tmp_path / "outrider-profile.json").read_text())[0]["forwards"]
    )


def test_output_ends_with_the_sequence_length_and_says_so(
    capsys: pytest.CaptureFixture[str], port: str
) -> None:
    flags = ["--sequence_length", "20", "--max_new_tokens", "500", "--json"]
    code, out, err = draft(capsys, port, "--prompt", PROMPT, *flags)
    made = records(out)[0]
    assert code == 0
    assert made["prompt_tokens"] + len(made["token_ids"]) == 20  # type: ignore[arg-type, operator]
    assert "sequence length of 20" in err


BAD_VALUES = {
    "negative temperature": (["--temperature", "-1"], "--temperature -1"),
    "temperature that float32 cannot tell": (["--temperature", "1e-5"], "0.001"),
    "top-p of 0": (["--top_p", "0"], "--top_p 0"),
    "top-k over 256": (["--top_k", "257"], "256"),
    "negative seed": (["--seed", "-1"], "--seed -1"),
    "no tokens": (["--max_new_tokens", "0"], "--max_new_tokens 0"),
    "half a token": (["--max_new_tokens", "1.5"], "--max_new_tokens 1.5"),
    "chain and tree": (["--gamma", "3", "--tree_nodes", "5"], "--gamma"),
    "no rows": (["--batch", "0"], "--batch 0"),
    "half a pair": (["--tls_cert", "x"], "--tls_key"),
    "address without a host": (["--target_host", "a:1,"], "--target_host a:1,"),
    "address with a port that is none": (["--target_host", "localhost:x"], "HOST:PORT"),
    "patience without end": (["--patience", "inf"], "--patience inf"),
}


@pytest.mark.parametrize(("flags", "words"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_values_are_checked_before_anything_is_loaded_or_asked(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        draft(capsys, "1", "--prompt", "x", *flags)
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert words in line


BAD_INPUT = {
    "missing model": (["--draft_model", "/nowhere/model", "--prompt", "x"], "/nowhere/model"),
    "empty prompt": (["--prompt", ""], "prompt is empty"),
    "no prompt": ([], "--prompt"),
    "two prompts": (["--prompt", "x", "--prompt_text", "f"], "one of"),
    "unreadable prompt file": (["--prompt_text", "/nowhere.txt"], "/nowhere.txt"),
    "prompt over the limit": (["--prompt", "x " * 3000], "sequence length is 1024"),
    "sequence length over the model's": (
        ["--prompt", "x", "--sequence_length", "5000"],
        "max_position_embeddings",
    ),
    "unserved device": (["--prompt", "x", "--device", "neuron"], "neuron"),
    "unpriced instance": (["--prompt", "x", "--instance", "trn9.foo", "--no_live"], "trn9.foo"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_gets_one_clear_line_and_a_non_zero_exit(
    capsys: pytest.CaptureFixture[str], port: str, arguments: list[str], words: str
) -> None:
    code, out, err = draft(capsys, port, *arguments)
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert code == 1
    assert out == ""
    assert len(errors) == 1
    assert words in errors[0]
    assert "indexing errors" not in err


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_where_no_target_listens_here_it_is_said_before_torch_is_loaded(verb: str) -> None:
    words = [verb, "--port", "1", *(["--prompt", "x"] if verb == "run" else [])]
    script = (
        "import sys; from outrider.cli import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: no Outrider target answers at 127.0.0.1:1: nobody listens there; "
        "start it with `outrider target --port 1`\n"
    )


def test_another_tokenizer_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], port: str, tmp_path: Path
) -> None:
    for path in (EMBEDDED / "draft").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["model"]["merges"] = raw["model"]["merges"][:-5]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    code, _, err = draft(capsys, port, "--draft_model", str(tmp_path), "--prompt", "x")
    assert code == 1
    assert str(tmp_path) in err
    assert "outrider-embedded-target" in err


def test_a_target_open_to_the_network_needs_tls_and_a_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "--role", "target", "--host", "0.0.0.0", "--port", "0")
    assert code == 1
    assert "--tls_cert" in err


def test_certificates_made_here_serve_a_session_with_a_token(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "--role", "make-cert", "--host", "localhost", "--out", str(tmp_path))[0] == 0
    (tmp_path / "token").write_text("a-secret\n")
    (tmp_path / "wrong").write_text("another\n")
    for name in ("token", "wrong"):
        (tmp_path / name).chmod(0o600)
    server = ["--tls_cert", f"{tmp_path}/cert.pem", "--tls_key", f"{tmp_path}/key.pem"]
    server += ["--token_file", f"{tmp_path}/token", "--batch", "1"]
    with target_process(server) as address:
        client = ["--target_host", address, "--tls_ca", f"{tmp_path}/ca.pem"]
        client += ["--prompt", PROMPT, "--max_new_tokens", "5", "--json"]
        code, out, _ = run(capsys, "--role", "draft", *client, "--token_file", f"{tmp_path}/token")
        assert code == 0
        assert len(records(out)[0]["token_ids"]) == 5  # type: ignore[arg-type]
        code, _, err = run(capsys, "--role", "draft", *client, "--token_file", f"{tmp_path}/wrong")
        assert code == 1
        assert "token" in err


def test_several_texts_are_told_apart_by_their_prompts(
    capsys: pytest.CaptureFixture[str], port: str, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("def a():\nclass B:\n")
    flags = ["--prompt_text", str(tmp_path / "prompts.txt"), "--max_new_tokens", "3"]
    _, out, _ = draft(capsys, port, *flags)
    labels = [line for line in out.splitlines() if line.startswith("--- ")]
    assert labels == ["--- 1/2: def a():", "--- 2/2: class B:"]


def test_where_nobody_reads_the_text_the_draft_ends_without_a_word(port: str) -> None:
    command = [sys.executable, str(MAIN), "--role", "draft", "--port", port, "--prompt", PROMPT]
    process = subprocess.Popen(
        [*command, "--max_new_tokens", "900"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(timeout=30) == 141
    assert "Traceback" not in said
    assert "Broken" not in said


def test_interrupting_a_draft_ends_it_cleanly_with_what_was_made(port: str) -> None:
    command = [sys.executable, str(MAIN), "--role", "draft", "--port", port, "--prompt", PROMPT]
    command += ["--max_new_tokens", "1000", "--gamma", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert first + out
    assert "Traceback" not in err
    assert "forwards" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_target_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, str(MAIN), "--role", "target", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "listening" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    assert "Traceback" not in process.stderr.read()


def test_a_port_in_use_is_refused_in_words(capsys: pytest.CaptureFixture[str], port: str) -> None:
    """Before anything is loaded."""
    code, _, err = run(capsys, "--role", "target", "--port", port)
    (line,) = err.splitlines()
    assert code == 1
    assert f"127.0.0.1:{port}: Address already in use" in line
