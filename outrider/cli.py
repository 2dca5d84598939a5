"""From a command line to a role, and from an error to one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from inference.errors import OutriderError
from outrider.options import Options, parse

_FAILED, _INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role; 0 when it did what was asked."""
    options = parse(arguments)
    try:
        return _run(options)
    except OutriderError as error:
        if options.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


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
    from outrider.generate import draft, verify

    return draft(options) if options.role == "draft" else verify(options)
