"""What README and docs/ show of the endpoint, Python and the chat runs, but for ports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outrider.endpoint.run import SERVING
from outrider.target.spawn import role_command, role_environment, started
from tests.support.repository import ROOT

pytestmark = pytest.mark.extended

PAGES = [ROOT / "README.md", ROOT / "docs" / "api.md"]
WAIT = 240
"""Seconds that a command may take on a busy machine."""


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a kind, with continued lines joined."""
    found = re.findall(rf"(?ms)^```{kind}\n(.*?)^```", page.read_text("utf-8"))
    return [block.replace("\\\n", " ") for block in found]


def commands(page: Path, start: str) -> list[str]:
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    return [re.split(r"\s+#", line)[0] for line in lines if line.startswith(start)]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with started("target") as process:
        yield process.address


@pytest.fixture(scope="module")
def address(target: str) -> Iterator[str]:
    """HOST:PORT of `outrider serve` in a process of its own."""
    command = role_command("serve", "--target_host", target, "--http_port", "0")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=role_environment())
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(SERVING))
        yield re.findall(r"//(\S+)/v1", line)[0]
    finally:
        process.terminate()
        process.wait(WAIT)


def run(command: Sequence[str | Path], text: str = "") -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=WAIT, env=role_environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_curl_commands_are_answered_and_the_python_blocks_run(page: Path, address: str) -> None:
    calls, programs = commands(page, "curl "), blocks(page, "python")
    assert calls
    assert programs
    for command in calls:
        said = run(["bash", "-c", command.replace("127.0.0.1:8000", address) + " --fail"])
        assert '"choices"' in said
    for program in programs:
        assert run([sys.executable, "-c", program.replace("127.0.0.1:8000", address)]).strip()


def test_the_installed_command_is_named_as_the_docs_name_it_and_the_chat_answers(
    target: str,
) -> None:
    outrider = Path(sys.executable).parent / "outrider"
    assert run([outrider, "--version"]).startswith("outrider ")
    (command,) = commands(ROOT / "README.md", "outrider chat")
    words = [*command.split()[1:], "--target_host", target]
    assert run([outrider, *words], "def main():\n").strip()
