"""Runs the role or verb that a command line names. Each error is reported in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from inference.command import run_command, say
from outrider.installation import check_top_level
from outrider.options.commands import OTHER_VERBS, parse
from outrider.options.roles import (
    ChatRole,
    DraftRole,
    FusedClientRole,
    MakeCertRole,
    MakeKeyRole,
    Role,
)
from outrider.processes import CHILD, end_with_input, leave

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
    "pull": "outrider.models.catalog.models_here:pull",
    "list": "outrider.models.catalog.models_here:list_here",
    "doctor": "outrider.doctor:doctor",
    "cert": "outrider.cli:make_cert",
    "keys": "outrider.cli:make_key",
    "demo": "outrider.terminal.demo:main",
    "compile": "outrider.aws_verbs:compile_target",
    "compare": "outrider.measure.commands:compare",
    "bench": "outrider.measure.commands:bench",
    "recommend": "outrider.measure.commands:recommend",
    "prove": "outrider.measure.commands:prove",
    "runs": "outrider.measure.commands:runs",
    "deploy": "outrider.aws_verbs:deploy",
}
"""The function of each role (called with its options) and of each other verb (called with the
command-line words). Imported when called, so help needs no torch, and a client no server.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the role or verb that the arguments name. Returns 0 on success."""
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
        return int(_function(words[0])(words[1:]))
    options = parse(words)
    return run_command(lambda: run_role(options), debug=options.debug)


def run_role(options: Role) -> int:
    """Run the role of these options. Raises MissingExtra before doing anything else."""
    options.check_extra()
    if isinstance(options, DraftRole | ChatRole | FusedClientRole):
        from outrider.client.connecting import check_listening

        check_listening(options)  # fail before a draft is loaded
    return int(_function(options.role)(options))


def _function(name: str) -> Callable[[Any], Any]:
    module, _, function = PROGRAMS[name].partition(":")
    return getattr(import_module(module), function)  # type: ignore[no-any-return]


def make_cert(options: MakeCertRole) -> int:
    """Write a self-signed authority, and a certificate for --host signed by it."""
    from grpc_comm.certificate import make_certificate

    hosts = list(dict.fromkeys([options.host, "localhost", "127.0.0.1"]))
    files = make_certificate(Path(options.out), hosts)
    say(
        f"target: --tls_cert {files.certificate} --tls_key {files.key}\ndraft:  --tls_ca {files.ca}"
    )
    return 0


def make_key(options: MakeKeyRole) -> int:
    """Add a key to --keys_file and print its token, which is stored nowhere."""
    from grpc_comm import keys

    token = keys.make_key(Path(options.keys_file), options.name)
    say(
        f"added {options.name}; its token is shown only once, limits can be added to the entry in "
        f"{options.keys_file}:"
    )
    print(token)
    return 0
