"""`outrider compile`: builds on this machine, or with --on on an instance of EC2."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from compile.__main__ import main as build_here
from compile.compile_options import parse
from inference.command import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when what was asked was done."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not any(word.partition("=")[0] == "--on" for word in words):
        return build_here(words)
    options = parse(words)

    def build() -> int:
        from deploy.cloud_build import build_on

        return build_on(options)

    return run_command(build, debug=options.debug, interrupted="interrupted: the build was removed")
