"""Role up: the pair for a machine, what runs and what is left behind, and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import constants

import outrider
from inference.errors import InvalidRequest
from outrider.cli import main
from outrider.models.catalog.models_here import ModelHere, models_below, published_models
from outrider.models.catalog.pairs import (
    MachineFacts,
    choose_draft,
    choose_pair,
    is_called,
    read_name,
    short_names,
)
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import UpRole
from outrider.target.spawn import role_environment

LAPTOP = MachineFacts(16 * 10**9, 8)
SMALL = MachineFacts(24 * 10**9, 2)
GPU = MachineFacts(24 * 10**9, 16, gpu=True, bfloat16=True)
CODER = "qwen2.5-coder"


@pytest.mark.parametrize(
    ("machine", "name", "target", "draft"),
    [
        (SMALL, CODER, "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "0.5b-instruct-q4_k_m.gguf"),
        (LAPTOP, CODER, "qwen2.5-coder-7b-instruct-q4_k_m.gguf", "0.5b-instruct-q4_k_m.gguf"),
        (SMALL, f"{CODER}:7b", "qwen2.5-coder-7b-instruct-q4_k_m.gguf", "0.5b-"),
        (SMALL._replace(llama_cpp=False), CODER, "Qwen/Qwen2.5-Coder-1.5B-Instruct", "0.5B"),
        (LAPTOP._replace(bfloat16=True), CODER, "Qwen/Qwen2.5-Coder-1.5B-Instruct", "0.5B"),
        (LAPTOP._replace(torch=False), "qwen3", "Qwen3-8B-Q4_K_M.gguf", "Qwen3-0.6B-Q8_0.gguf"),
        (GPU, CODER, "Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        (GPU._replace(memory=8 * 10**10), CODER, "Qwen/Qwen2.5-Coder-14B-Instruct", "0.5B"),
        (GPU._replace(bfloat16=False), "llama-3", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "1B"),
        (SMALL, "llama-3", "Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct-Q4_K_M"),
        (MachineFacts(8 * 10**9, 8), "qwen3", "Qwen3-4B-Q4_K_M.gguf", "Qwen3-0.6B-Q8_0.gguf"),
    ],
    ids=str,
)
def test_a_pair_is_the_largest_that_a_machine_computes_quickly(
    machine: MachineFacts, name: str, target: str, draft: str
) -> None:
    short, size = read_name(name)
    pair = choose_pair(short_names()[short], machine, size)
    assert pair is not None
    assert pair[0].name == target
    assert draft in pair[1].name


@pytest.mark.parametrize(
    ("machine", "size"),
    [
        (MachineFacts(10**9, 2), ""),
        (LAPTOP, "32b"),
        (LAPTOP._replace(torch=False, llama_cpp=False), ""),
    ],
)
def test_where_nothing_fits_no_pair_is_chosen(machine: MachineFacts, size: str) -> None:
    assert choose_pair(short_names()[CODER], machine, size) is None


def test_a_pair_here_needs_one_tokenizer_and_a_draft_of_half_the_size() -> None:
    large, small = (ModelHere(f"m-{n}b", Path("m"), n, n * 10**9, "t") for n in (4, 2))
    assert choose_pair([large, small], SMALL) == (large, small)
    assert choose_pair([large, small._replace(family="u")], SMALL) is None
    assert choose_pair([large, small._replace(parameters=3 * 10**9)], SMALL) is None


def test_a_draft_alone_is_the_smallest_of_the_kind_that_is_quick_here() -> None:
    drafts = short_names()[CODER][:4]
    for machine, gguf in ((SMALL, True), (GPU, False)):
        chosen = choose_draft(drafts, machine)
        assert chosen is not None
        assert (chosen.gguf, chosen.millions) == (gguf, 494)
    assert choose_draft(drafts, SMALL._replace(torch=False, llama_cpp=False)) is None


def test_a_name_belongs_to_the_longest_family_in_it() -> None:
    assert is_called("/models/qwen2.5-coder-1.5b.gguf", CODER)
    assert not is_called("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5")
    assert is_called("Qwen/Qwen2.5-7B-Instruct", "qwen2.5", "7b")
    assert not is_called("Qwen/Qwen2.5-7B-Instruct", "qwen2.5", "1.5b")


def test_models_of_the_table_state_their_size_licence_and_tokenizer() -> None:
    for one in published_models():
        bits = 8e6 * one.megabytes / one.parameters
        assert (4 <= bits <= 10) if one.gguf else (15 <= bits <= 21), one.name
        assert one.licence
        assert bool(one.tokenizer) == one.gguf


@pytest.mark.parametrize(
    ("name", "told"),
    [("qwen2.5-codr", "did you mean qwen2.5-coder"), ("qwen3:7b", "has 1.7b, 4b, 8b")],
)
def test_another_name_is_answered_with_those_that_there_are(name: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(told)):
        read_name(name)


def test_without_a_name_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["embedded", *short_names()]


@pytest.fixture
def without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that nobody answers for, and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("without_network")
def test_without_network_and_models_the_error_names_what_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["up", CODER, "--http_port", "0"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in ("1.5", "0.5", "GB", "--directory"))


def test_a_directory_without_a_pair_is_refused_with_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    assert main(["up", "--directory", str(tmp_path), "--http_port", "0"]) == 1
    assert "a target and a draft" in capsys.readouterr().err


def test_models_may_not_be_named_twice() -> None:
    with pytest.raises(InvalidRequest, match="--draft_model is for outrider serve"):
        UpRole(name=CODER, draft_model="elsewhere")


def test_another_model_at_the_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with outrider.serve(port=0, batch=1) as target:
        words = ["up", "qwen3", "--target_host", target.address, "--http_port", "0"]
        assert main(words) == 1
    assert "the target serves outrider-embedded-target, not qwen3" in capsys.readouterr().err


def begun(*words: str) -> subprocess.Popen[str]:
    """The role, in a group of processes of its own."""
    command = [sys.executable, "-m", "outrider", "up", *words, "--http_port", "0"]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=role_environment(), start_new_session=True
    )


def until(process: subprocess.Popen[str], beginning: str) -> str:
    """The rest of the first line with this beginning."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    raise AssertionError("".join(said))


def assert_nothing_is_left(process: subprocess.Popen[str]) -> None:
    """The group's processes end, each of them."""
    process.communicate(timeout=60)
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("a process is left")


def answer(page: str) -> str:
    body = {"prompt": "def main():", "max_tokens": 8}
    asked = urllib.request.Request(
        f"{page}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as got:
        return str(json.load(got)["choices"][0]["text"])


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A directory with a pair."""
    for part in ("draft", "target"):
        shutil.copytree(EMBEDDED / part, tmp_path / part)
    assert len(list(models_below([tmp_path]))) == 2
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
@pytest.mark.parametrize("by_name", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_a_pair_answers_over_http_and_leaves_nothing(by_name: bool, folder: str) -> None:
    process = begun("embedded") if by_name else begun("--directory", folder)
    page = until(process, "chat page: ")
    assert page.startswith("http://127.0.0.1:")
    assert answer(page)
    if by_name:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C
    else:
        process.send_signal(signal.SIGTERM)
    assert_nothing_is_left(process)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
def test_a_pair_that_is_stopped_while_it_starts_leaves_nothing() -> None:
    process = begun("embedded")
    until(process, "starting the target")
    process.send_signal(signal.SIGTERM)
    assert_nothing_is_left(process)
    assert process.returncode == 130


@pytest.mark.slow
def test_the_draft_alone_is_chosen_for_what_the_target_serves() -> None:
    with outrider.serve(port=0) as target:
        process = begun("embedded", "--target_host", target.address)
        assert "outrider-embedded-target" in until(process, "target: ")
        assert "outrider-embedded-draft" in until(process, "draft: ")
        assert answer(until(process, "chat page: "))
        process.send_signal(signal.SIGINT)
        assert_nothing_is_left(process)
