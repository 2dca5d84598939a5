"""Role up: the pair for a machine, what runs and what is left behind, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

import outrider
from outrider.models.catalog.models_here import ModelHere, published_models
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
from tests.support.commands import Run
from tests.support.refusals import assert_refused

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


def test_where_nothing_fits_nothing_is_chosen_and_a_draft_alone_is_the_smallest_quick_one() -> None:
    tiny, bare = MachineFacts(10**9, 2), LAPTOP._replace(torch=False, llama_cpp=False)
    for machine, size in ((tiny, ""), (LAPTOP, "32b"), (bare, "")):
        assert choose_pair(short_names()[CODER], machine, size) is None
    drafts = short_names()[CODER][:4]
    for machine, gguf in ((SMALL, True), (GPU, False)):
        chosen = choose_draft(drafts, machine)
        assert chosen is not None
        assert (chosen.gguf, chosen.millions) == (gguf, 494)
    assert choose_draft(drafts, bare) is None


def test_a_pair_here_needs_one_tokenizer_and_a_draft_of_half_the_size() -> None:
    large, small = (ModelHere(f"m-{n}b", Path("m"), n, n * 10**9, "t") for n in (4, 2))
    assert choose_pair([large, small], SMALL) == (large, small)
    assert choose_pair([large, small._replace(family="u")], SMALL) is None
    assert choose_pair([large, small._replace(parameters=3 * 10**9)], SMALL) is None


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


def test_another_name_is_answered_with_those_that_there_are_and_without_one_all_are_listed(
    run: Run,
) -> None:
    assert_refused(lambda: read_name("qwen2.5-codr"), ["did you mean qwen2.5-coder"])
    assert_refused(lambda: read_name("qwen3:7b"), ["has 1.7b, 4b, 8b"])
    listed = run("up")
    assert listed.code == 0
    names = [line.split()[0] for line in listed.out.splitlines()[1:-1]]
    assert names == ["embedded", *short_names()]


def test_a_pair_that_is_not_here_is_refused_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")  # a hub without an answer
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    run("up", CODER, "--http_port", "0").assert_failed("1.5", "0.5", "GB", "--directory")
    shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    alone = run("up", "--directory", tmp_path, "--http_port", "0")
    alone.assert_failed("a target and a draft")
    with outrider.serve(port=0, batch=1) as target:
        other = run("up", "qwen3", "--target_host", target.address, "--http_port", "0")
    other.assert_failed("the target serves outrider-embedded-target, not qwen3")
    twice = partial(UpRole, name=CODER, draft_model="elsewhere")
    assert_refused(twice, ["--draft_model is for outrider serve"])


def test_the_draft_alone_is_chosen_for_what_the_target_serves(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_arguments: None)
    with outrider.serve(port=0) as target:
        ended = run("up", "embedded", "--target_host", target.address, "--http_port", "0")
    lines = [line for line in ended.err.splitlines() if line.startswith(("target: ", "draft: "))]
    models = [line.split()[1].rstrip(",") for line in lines]
    assert models == ["outrider-embedded-target", "outrider-embedded-draft"]


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
def test_a_pair_answers_over_http_and_leaves_nothing(tmp_path: Path) -> None:
    for model in ("draft", "target"):
        shutil.copytree(EMBEDDED / model, tmp_path / model)
    process = begun("--directory", str(tmp_path))
    page = until(process, "chat page: ")
    assert page.startswith("http://127.0.0.1:")
    body = json.dumps({"prompt": "def main():", "max_tokens": 8}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{page}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["choices"][0]["text"]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C
    assert_nothing_is_left(process)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
def test_a_pair_that_is_stopped_while_it_starts_leaves_nothing() -> None:
    process = begun("embedded")
    until(process, "starting the target")
    process.send_signal(signal.SIGTERM)
    assert_nothing_is_left(process)
    assert process.returncode == 130
