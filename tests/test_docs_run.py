"""The fenced commands of README and docs/ run as they stand, but for models, hosts and ports."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.wire_fixtures import free_port

pytestmark = pytest.mark.extended

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WAIT = 240.0
"""Seconds after which a command that should have ended, or a target that should listen, fails."""

NEEDED = {
    "--device neuron": "a Neuron device",
    "neuron-legacy": "a Neuron device",
    "--target_host HOST --gamma": "a target on a Neuron device",
    "s3://": "AWS",
    "--out artefact": "minutes of compiling, which tests of compile/ do at smaller sizes",
    "--target cpu": "minutes of compiling, which tests of compile/ do at smaller sizes",
    "--artifact": "an artefact",
    "--draft_quantization": "a target, which the page does not start",
    "--draft substitute": "a target, which the page does not start",
    ".gguf": "a GGUF file of the reader's own",
    "--cs 0,": "minutes of measuring",
    "--draft eagle": "a head that was trained for its target",
    "--target_model TARGET": "a checkpoint of the reader's own",
    "real-pair.json": "a target of the reader's own checkpoint",
    "--features": "a checkpoint of the reader's own",
    "-m benchmarks": "minutes of measuring",
    "-m tests.simulate": "minutes of simulating, which tests of tests/simulate do",
    "meta-llama": "a gated model",
}
"""What a command with these words needs that is not here."""

EMBEDDED = (
    (r"\bdocs/shapes", str(ROOT / "docs/shapes")),
    (r"--(draft_)?model (Qwen/\S+|DIR|DRAFT|MODEL)", ""),  # the pair that ships here
    (r"--device cuda", ""),
    (r"--host target\.example\.com", "--host localhost"),
    (
        r"--tls_cert … --tls_key …",
        "--tls_cert certificates/cert.pem --tls_key certificates/key.pem",
    ),
)
"""What stands for models, machines and files of the reader's own."""


VERBS = r"outrider (?=(cert|keys|run|target)\b)"
"""Verbs that end by themselves, or serve until they are stopped, on any machine."""

MAKE_CERT = "outrider cert --host localhost --out certificates"


def scenarios() -> Iterator[tuple[str, list[str]]]:
    """The commands of each page, in order, that can run here."""
    for page in PAGES:
        commands: list[str] = []
        for block in re.findall(r"(?ms)^ *```(?:sh)?\n(.*?)^ *```", page.read_text("utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.split(r"\s+#", line)[0].strip()
                runs = re.match(rf"(python |{VERBS}|\(?umask )", command)
                if runs and not any(words in command for words in NEEDED):
                    commands.append(command)
        if commands:
            yield page.name, commands


def here(command: str, port: int) -> str:
    """The command with what stands for the reader's own, and this machine's python."""
    for words, instead in EMBEDDED:
        command = re.sub(words, instead, command)
    command = re.sub(r"--target_host \S+", "", command)
    if "outrider target" in command:
        command += f" --port {port}"
    if "outrider run" in command:
        command += f" --target_host localhost:{port}"
    python = shlex.quote(sys.executable)
    command = re.sub(rf"\b{VERBS}", f"{python} {shlex.quote(str(ROOT / 'main.py'))} ", command)
    return re.sub(r"\bpython -m", f"{python} -m", command)


@contextmanager
def serving(command: str, folder: Path, port: int, environment: dict[str, str]) -> Iterator[None]:
    with (folder / "target.log").open("w+b") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stderr=log, stdout=log
        )
        try:
            deadline = time.monotonic() + WAIT
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                said = (folder / "target.log").read_text("utf-8")
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(WAIT)


def run_all(commands: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run these in order; a target serves those behind it, up to the next target."""
    for place, command in enumerate(commands):
        if "outrider target" in command:
            port = free_port()
            with serving(here(command, port), folder, port, environment):
                later = [one for one in commands[place + 1 :] if "outrider target" not in one]
                for client in later:
                    finished(here(client, port), folder, environment)
            return run_all(
                [one for one in commands[place + 1 :] if one not in later], folder, environment
            )
        finished(here(command, 0), folder, environment)
    return None


def finished(command: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "commands"), list(scenarios()), ids=lambda one: str(one)[:20])
def test_the_commands_of_a_page_run(page: str, commands: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not any("outrider cert" in command for command in commands):
        finished(here(MAKE_CERT, 0), tmp_path, environment)
    run_all(commands, tmp_path, environment)
