"""make demo: draft and target as two processes on this machine, and what that saves against the
target alone.
"""

from __future__ import annotations

import subprocess
import sys

from inference.command import say
from outrider.spawn import role_command, role_environment, target_process

PROMPT = '''import os
import sys


def read_lines(path, encoding="utf-8"):
    """Read a text file and return its lines as a list of strings."""'''


def main() -> int:
    """Start a target, draft against it, stop it."""
    say("starting a target process and a draft process on loopback, with the models that ship here")
    with target_process() as address:
        command = role_command(
            "draft",
            "--target_host",
            address,
            "--prompt",
            PROMPT,
            "--max_new_tokens",
            "200",
            "--baseline",
        )
        command += ["--temperature", "0.7", "--top_p", "0.9", "--seed", "7"]
        say(
            f"prompt:\n{PROMPT}\n\ncontinuation (coloured on a terminal: green was guessed by the "
            "draft, bold is the target's own):"
        )
        return subprocess.run(command, check=False, env=role_environment()).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
