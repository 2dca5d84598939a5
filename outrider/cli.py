"""From a command line to a role, and from an error to one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence

from inference.command import run_command
from outrider.options import Options, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role; 0 when it did what was asked."""
    options = parse(arguments)
    return run_command(lambda: _run(options), debug=options.debug)


def _run(options: Options) -> int:
    """Roles are imported when they run: help needs no torch, a client no server."""
    if options.role in ("target", "fused_target"):
        from outrider.serve import serve

        return serve(options)
    if options.role == "make-cert":
        from outrider.serve import make_cert

        return make_cert(options)
    if options.role == "make-key":
        from outrider.serve import make_key

        return make_key(options)
    if options.role == "fused_client":
        from outrider.fused import fused_client

        return fused_client(options)
    if options.calibrate:
        from outrider.calibrate import calibrate

        return calibrate(options)
    from outrider.generate import draft, verify

    return draft(options) if options.role == "draft" else verify(options)
