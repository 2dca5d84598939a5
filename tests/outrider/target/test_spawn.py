"""What a command starts does not outlive that command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outrider.processes import READY
from outrider.target.spawn import child_environment, role_command

STARTED = {
    "target": role_command("target", "--port", "0", "--batch", "1"),
    "link": [
        *(sys.executable, "-m", "outrider.measure.link"),
        *("127.0.0.1:1", "127.0.0.1:0", "0", "0"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "by"), [("target", "input"), ("link", "SIGTERM"), ("link", "input")]
)
def test_a_process_ends_when_it_is_told_to_and_when_its_starter_and_input_are_gone(
    kind: str, by: str
) -> None:
    with subprocess.Popen(
        STARTED[kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert any(line.startswith(READY) for line in process.stdout)
        assert process.poll() is None
        process.terminate() if by == "SIGTERM" else process.stdin.close()
        assert process.wait(60) == 0
