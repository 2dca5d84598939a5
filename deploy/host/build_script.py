"""User data of a host that compiles an artefact: a shell script that cloud-init runs once, as root.

It arms the end of the host's lifetime, installs Outrider, runs one compile command, which pushes
what it built, and powers the host off, whatever came of it. How far it is lies in the bucket:

    REPORTS/status.json   {"state": "running" | "built" | "failed", "step", "digest"}
    REPORTS/log.txt       all that was printed
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deploy.host.installation import S3_OBJECT, Installation, need, script

WORK = "/var/lib/outrider-build"
ARTEFACT = f"{WORK}/artefact"
LOAD = f"{WORK}/load.json"
"""The path on the host of a file that --load names."""


@dataclass(frozen=True, kw_only=True)
class BuildSettings(Installation):
    """The settings of a host that builds. Raises InvalidRequest for a value that cannot be."""

    arguments: tuple[str, ...]  # of `python -m compile`, with --out ARTEFACT and --push
    reports: str  # s3://BUCKET/PREFIX
    load: str | None = None  # s3://BUCKET/KEY of the file that --load names

    def __post_init__(self) -> None:
        super().__post_init__()
        for url in (self.reports, *([self.load] if self.load else [])):
            need(url, S3_OBJECT, "s3://BUCKET/KEY")


def build_script(settings: BuildSettings) -> str:
    """The script."""
    values = settings.assignments("torch,aws,compile") | {
        "reports": settings.reports,
        "load": settings.load or "",
    }
    arguments = f"arguments=({shlex.join(settings.arguments)})\n"
    return script(values, arguments, main="build.sh")
