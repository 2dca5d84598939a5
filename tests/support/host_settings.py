"""Settings of a host that serves a target, for tests of what it is told."""

from __future__ import annotations

from typing import Any

from deploy.host.user_data import HostSecrets, HostSettings

SECRETS = HostSecrets("/outrider/t1/cert", "/outrider/t1/key", "/outrider/t1/keys")
DIGEST = "0123456789abcdef" * 4


def settings(**changes: Any) -> HostSettings:
    given: dict[str, Any] = {
        "region": "us-west-2",
        "wheel": "s3://bucket/t1/outrider-0.1.0-py3-none-any.whl",
        "wheel_sha256": DIGEST,
        "secrets": SECRETS,
        "idle_minutes": 30,
        "lifetime_hours": 8.0,
    }
    return HostSettings(**given | changes)
