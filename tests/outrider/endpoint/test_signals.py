"""`outrider serve` as a process: what the first signal leaves to the texts that are being made."""

from __future__ import annotations

import re
import subprocess

import httpx
import pytest

from outrider.endpoint.run import SERVING
from outrider.target.spawn import role_command, role_environment

pytestmark = pytest.mark.extended


def test_a_stream_may_end_after_the_first_signal(target: str) -> None:
    command = role_command("serve", "--target_host", target, "--http_port", "0", "--target_only")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=role_environment())
    assert process.stderr is not None
    with process:
        line = next(line for line in process.stderr if line.startswith(SERVING))
        (address,) = re.findall(r"(http://\S+/v1)", line)
        asked = {"prompt": "def main():", "max_tokens": 200, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{address}/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        process.wait(60)
    assert process.returncode == 0
