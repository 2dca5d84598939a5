"""Runs the role or verb that a command line asks for, with errors in one line each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from inference.command import run_command
from outrider.options.parsing import parse
from outrider.options.roles import ChatRole, DraftRole, FusedClientRole, Role
from outrider.options.verbs import OTHER_VERBS

PROGRAMS = {
    "target": "outrider.target.target:serve",
    "fused_target": "outrider.target.target:serve",
    "serve": "outrider.endpoint.run:serve_http",
    "up": "outrider.endpoint.pair_server:up",
    "chat": "outrider.terminal.chat:chat",
    "draft": "outrider.terminal.generate:draft",
    "fused_client": "outrider.terminal.generate:fused_client",
    "verify_target": "outrider.terminal.alone:verify",
    "verify_draft": "outrider.terminal.alone:verify",
    "pull": "outrider.models.models_here:pull",
    "list": "outrider.models.models_here:list_here",
    "doctor": "outrider.doctor.command:doctor",
    "cert": "outrider.credentials:make_cert",
    "keys": "outrider.credentials:make_key",
    "demo": "outrider.terminal.demo:main",
    "compile": "outrider.aws_verbs:compile_target",
    "compare": "outrider.compare.__main__:main",
    "bench": "outrider.bench.command:main",
    "recommend": "outrider.recommend.command:main",
    "prove": "outrider.prove.command:main",
    "runs": "outrider.runs.command:main",
    "deploy": "outrider.aws_verbs:deploy",
}
"""The function of each role, which takes its options, and of each other verb, which takes words.
They are imported when they are called: help needs no torch, a client no server.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role or a verb. Returns 0 when it did what was asked."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    if words and words[0] in OTHER_VERBS:
        return _run(words[0], words[1:])
    options = parse(words)
    return run_command(lambda: run_role(options), debug=options.debug)


def run_role(options: Role) -> int:
    """Run the options' role. Raises MissingExtra before anything else is done."""
    options.check_extra()
    if isinstance(options, DraftRole | ChatRole | FusedClientRole):
        from outrider.client.connecting import check_listening

        check_listening(options.connection)  # before a draft is loaded
    return _run(options.role, options)


def _run(name: str, asked: Any) -> int:
    module, _, function = PROGRAMS[name].partition(":")
    return int(getattr(import_module(module), function)(asked))
