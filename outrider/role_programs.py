"""Runs a role by its options. Its code is imported when called: help needs no torch, a client no
server.
"""

from __future__ import annotations

from importlib import import_module

from outrider.options.roles import ChatRole, DraftRole, FusedClientRole, Role

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
    "doctor": "outrider.doctor.command:doctor",
    "cert": "outrider.credentials:make_cert",
    "keys": "outrider.credentials:make_key",
}
"""The function of each role. It takes the role's options."""


def run_role(options: Role) -> int:
    """Run the options' role. Raises MissingExtra before anything else is done."""
    options.check_extra()
    if isinstance(options, DraftRole | ChatRole | FusedClientRole):
        from outrider.client.connecting import check_listening

        check_listening(options.connection)  # before a draft is loaded
    module, _, function = PROGRAMS[options.role].partition(":")
    return int(getattr(import_module(module), function)(options))
