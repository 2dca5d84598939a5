"""Runs `outrider demo`: a draft here, a target as a process of its own, and what that saves against
the target alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.command import run_command, say, told_to
from inference.extras import require
from inference.flags.command_line import CommandOptions, parse_flags

PROMPT = '''import os


def read_lines(path, encoding="utf-8"):
    """Read a text file and return its lines as a list of strings."""'''

SAMPLING: dict[str, Any] = {"max_new_tokens": 200, "temperature": 0.8, "seed": 4}

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
    from outrider.options.roles import DraftRole
    from outrider.target.spawn import started
    from outrider.terminal.generate import draft

    say("starting a target process, and a draft in this one, with the models that ship here")
    with started("target") as target:
        asked = {**SAMPLING, "target_host": target.address, "prompt": PROMPT, "baseline": True}
        say(
            f"prompt:\n{PROMPT}\n\ncontinuation (coloured on a terminal: green was guessed by the "
            "draft, bold is the target's own):"
        )
        said: list[str] = []
        with told_to(lambda line, _lasting: said.append(line)):
            code = draft(DraftRole(**asked))
    lines = "\n".join(said).splitlines()
    say("\n".join(lines if code else lines[-_LAST:]))
    return code
