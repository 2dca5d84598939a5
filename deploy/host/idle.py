"""Asks a target on this host whether it is idle: `python -m deploy.host.idle`.

It looks at sessions alone. Exit code 0 says that nobody had a session for long enough, 1 that
somebody did. A target that does not answer has no sessions: it is loading, or it failed.
"""

from __future__ import annotations
