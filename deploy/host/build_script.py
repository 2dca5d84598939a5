"""User data of a host that compiles an artefact: a shell script that cloud-init runs once, as root.

It arms the end of the host's lifetime, installs Outrider, runs one compile command, which pushes
what it built, and powers the host off, whatever came of it. How far it is lies in the bucket:

    REPORTS/status.json   {"state": "running" | "built" | "failed", "step", "digest"}
    REPORTS/log.txt       all that was printed
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from inference.errors import InvalidRequest

WORK = "/var/lib/outrider-build"
ARTEFACT = f"{WORK}/artefact"
LOAD = f"{WORK}/load.json"
"""Where a file that --load names lies on the host."""

_HERE = Path(__file__).parent
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9!_.*'()/-]+")


@dataclass(frozen=True)
class BuildSettings:
    """What a host is to build. Raises InvalidRequest for a value that cannot be."""

    region: str
    wheel: str  # s3://BUCKET/.../outrider-VERSION-py3-none-any.whl
    wheel_sha256: str
    arguments: tuple[str, ...]  # of `python -m compile`, with --out ARTEFACT and --push
    reports: str  # s3://BUCKET/PREFIX
    load: str | None = None  # s3://BUCKET/KEY of the file that --load names
    venv: str | None = None  # of the machine image; None: a new one
    lifetime_hours: float = 6.0

    def __post_init__(self) -> None:
        for url in (self.wheel, self.reports, *([self.load] if self.load else [])):
            if not _S3.fullmatch(url):
                raise InvalidRequest(f"{url!r}: s3://BUCKET/KEY is needed")
        if not re.fullmatch("[0-9a-f]{64}", self.wheel_sha256):
            raise InvalidRequest(f"{self.wheel_sha256!r}: 64 hexadecimal digits are needed")
        if not 0 < self.lifetime_hours < float("inf"):
            raise InvalidRequest(f"a lifetime of {self.lifetime_hours} h: more than 0 is needed")


def build_script(settings: BuildSettings) -> str:
    """The script."""
    values = {
        "region": settings.region,
        "wheel": settings.wheel,
        "wheel_sha256": settings.wheel_sha256,
        "reports": settings.reports,
        "load": settings.load or "",
        "image_venv": settings.venv or "",
        "extras": "aws,compile",
        "extra_index": "",
        "lifetime_minutes": str(max(1, round(settings.lifetime_hours * 60))),
    }
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
    arguments = f"arguments=({shlex.join(settings.arguments)})\n"
    scripts = [(_HERE / name).read_text() for name in ("install.sh", "build.sh")]
    return "".join(["#!/bin/bash\n", *lines, arguments, *scripts])
