"""Runs `outrider demo`: draft and target as two processes on this machine, and what that saves
against the target alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from inference.command import run_command, say
from inference.extras import require
from inference.flags.command_line import CommandOptions, parse_flags

PROMPT = '''import os


def read_lines(path, encoding="utf-8"):
    """Read a text file and return its lines as a list of strings."""'''


_LAST = 2  # lines of the draft's summary that compare it with target-only


class DemoOptions(CommandOptions):
    """A target and a draft as two processes on this machine, with the models that ship here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when the text was made."""
    options = parse_flags(DemoOptions, "outrider demo", arguments)
    return run_command(_demonstrate, debug=options.debug)


def _demonstrate() -> int:
    """Start a target, draft against it, stop it."""
    require("torch", "outrider demo")
    from outrider.target.spawn import role_command, role_environment, target_process

    say("starting a target process and a draft process on loopback, with the models that ship here")
    with target_process() as address:
        command = role_command("draft", "--target_host", address, "--prompt", PROMPT, "--baseline")
        sampling = "--max_new_tokens 200 --temperature 0.7 --top_p 0.9 --seed 7"
        command += sampling.split()
        say(
            f"prompt:\n{PROMPT}\n\ncontinuation (coloured on a terminal: green was guessed by the "
            "draft, bold is the target's own):"
        )
        done = subprocess.run(  # noqa: S603
            command, check=False, env=role_environment(), stderr=subprocess.PIPE, text=True
        )
    said = done.stderr.splitlines()
    say("\n".join(said if done.returncode else said[-_LAST:]))
    return done.returncode
