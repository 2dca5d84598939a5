"""Settings of hosts that serve a target or run a job, for tests of what they are told."""

from __future__ import annotations

from typing import Any

from deploy.host.user_data import ARTEFACT, HostSettings, JobSettings

DIGEST = "0123456789abcdef" * 4
JOB = JobSettings(
    region="us-west-2",
    wheel="s3://bucket/outrider.whl",
    wheel_sha256=DIGEST,
    commands=(("compile", "--target=cpu", f"--out={ARTEFACT}", "--push=s3://bucket/artefacts"),),
    reports="s3://bucket/builds-of/build-1",
    lifetime_hours=6.0,
)


def settings(**changes: Any) -> HostSettings:
    given: dict[str, Any] = {
        "region": "us-west-2",
        "wheel": "s3://bucket/t1/outrider-0.1.0-py3-none-any.whl",
        "wheel_sha256": DIGEST,
        "secrets": ("/outrider/cert", "/outrider/key", "/outrider/keys"),
        "idle_minutes": 30,
        "lifetime_hours": 8.0,
    }
    return HostSettings(**given | changes)
