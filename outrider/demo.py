"""make demo: draft and target as two processes on this machine, and what that saves against the target alone."""

from __future__ import annotations

import subprocess
import sys

from outrider.spawn import MAIN, target_process

PROMPT = '''import os
import sys


def read_lines(path, encoding="utf-8"):
    """Read a text file and return its lines as a list of strings."""
'''


def main() -> int:
    """Start a target, draft against it, stop it."""
    print("starting a target process and a draft process on loopback, with the models that ship here", file=sys.stderr)
    with target_process() as address:
        command = [sys.executable, str(MAIN), "--role", "draft", "--target_host", address]
        command += ["--prompt", PROMPT, "--max_new_tokens", "160", "--temperature", "0.7", "--top_p", "0.9", "--seed", "7", "--baseline"]
        print(f"{PROMPT}", end="", flush=True)
        return subprocess.run(command, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
