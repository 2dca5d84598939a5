"""The verbs that may reach AWS: `outrider compile` and `outrider deploy`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from compile.__main__ import main as build_here
from compile.compile_options import parse
from deploy.__main__ import VERBS, Verb
from deploy.__main__ import main as run_verb
from inference.command import run_command
from inference.errors import require

_RAY = Verb("serve from several replicas behind one address", "outrider.target.ray_fleet")

DEPLOY_VERBS = VERBS | {"ray": _RAY}
"""Verbs of `outrider deploy`: the verbs in deploy/, and `ray`."""


def compile_target(arguments: Sequence[str] | None = None) -> int:
    """Compile a target on this machine, or on an instance with --on. Returns 0 on success."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not any(word.partition("=")[0] == "--on" for word in words):
        return build_here(words)
    options = parse(words)

    def build() -> int:
        require("torch", "outrider compile --on")
        from deploy.cloud_build import build_on  # needs numpy and more, which help does not

        return build_on(options)

    return run_command(build, debug=options.debug)


def deploy(arguments: Sequence[str] | None = None) -> int:
    """Run a verb of `outrider deploy`. Returns 0 on success."""
    return run_verb(arguments, DEPLOY_VERBS)
