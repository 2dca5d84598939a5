"""Runs the role that a command line asks for. An error becomes one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from inference.command import run_command
from outrider.options import parse
from outrider.options.groups import GeneralOptions, TextOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import (
    OTHER_VERBS,
    ChatRole,
    DoctorRole,
    ListRole,
    MakeCertRole,
    MakeKeyRole,
    ProfilesRole,
    PullRole,
    ServeRole,
    ServingRole,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role or a verb. Returns 0 when it did what was asked."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in OTHER_VERBS:
        return _command(words[0])(words[1:])
    options = parse(arguments)
    return run_command(lambda: run_role(options), debug=options.debug)


def _command(verb: str) -> Callable[[Sequence[str]], int]:
    """The main function of a verb that is a command of its own."""
    if verb == "demo":
        from outrider.terminal.demo import main as command
    elif verb == "compile":
        from outrider.compiling import main as command
    elif verb == "compare":
        from outrider.compare.__main__ import main as command
    elif verb == "runs":
        from outrider.runs.command import main as command
    else:
        from deploy.__main__ import main as command
    return command


def run_role(options: GeneralOptions) -> int:
    """Run the options' role. Roles are imported here: help needs no torch, a client no server."""
    if isinstance(options, ServingRole):
        from outrider.target.target import serve

        return serve(options)
    if isinstance(options, ServeRole):
        from outrider.endpoint.run import serve_http

        return serve_http(options)
    if isinstance(options, DoctorRole):
        from outrider.doctor.command import doctor

        return doctor(options)
    if isinstance(options, PullRole):
        from outrider.models.models_here import pull

        return pull(options)
    if isinstance(options, ListRole):
        from outrider.models.models_here import list_here

        return list_here(options)
    if isinstance(options, MakeCertRole):
        from outrider.credentials import make_cert

        return make_cert(options)
    if isinstance(options, MakeKeyRole):
        from outrider.credentials import make_key

        return make_key(options)
    if isinstance(options, ProfilesRole):
        from outrider.models.models_here import profiles

        return profiles(options)
    if isinstance(options, ConnectionOptions):
        from outrider.client.connecting import check_listening

        check_listening(options)  # before torch is loaded
    if isinstance(options, ChatRole):
        from outrider.terminal.chat import chat

        return chat(options)
    from outrider.terminal.generate import make_texts

    assert isinstance(options, TextOptions)
    return make_texts(options)
