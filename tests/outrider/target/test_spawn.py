"""A target that a command starts does not outlive that command."""

from __future__ import annotations

import subprocess

from outrider.target.spawn import role_command, role_environment
from outrider.target.target import READY


def test_a_target_ends_when_its_starter_is_gone_and_its_input_with_it() -> None:
    command = role_command("target", "--port", "0", "--batch", "1", "--end_with_input")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=role_environment()
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert any(line.startswith(READY) for line in process.stderr)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 0
