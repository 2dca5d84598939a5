"""Runs the role or verb of a command line. Errors are reported in one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from inference.command import run_command
from outrider.options.parsing import parse
from outrider.options.verbs import OTHER_VERBS
from outrider.processes import CHILD, end_with_input, leave
from outrider.role_programs import run_role
from outrider.top_level import check_top_level

PROGRAMS = {
    "demo": "outrider.terminal.demo:main",
    "compile": "outrider.aws_verbs:compile_target",
    "compare": "outrider.measure.commands:compare",
    "bench": "outrider.measure.commands:bench",
    "recommend": "outrider.measure.commands:recommend",
    "prove": "outrider.measure.commands:prove",
    "runs": "outrider.measure.commands:runs",
    "deploy": "outrider.aws_verbs:deploy",
}
"""The function of each verb that is not a role. It takes words, and is imported when called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role or a verb. Returns 0 on success."""
    if arguments is None:
        if os.environ.pop(CHILD, ""):
            end_with_input()
        return leave(main(sys.argv[1:]))
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    if words and words[0] in OTHER_VERBS:
        check_top_level("compile", "deploy")
        module, _, function = PROGRAMS[words[0]].partition(":")
        return int(getattr(import_module(module), function)(words[1:]))
    options = parse(words)
    return run_command(lambda: run_role(options), debug=options.debug)
