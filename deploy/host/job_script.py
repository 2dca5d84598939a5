"""User data of a host that runs a job: a shell script that cloud-init runs once, as root.

It arms the end of the host's lifetime, installs Outrider, runs the commands one after the other up
to the first that fails, and powers the host off, whatever came of them. In the bucket lie:

    REPORTS/status.json   {"state": "running" | "built" | "failed", "step", "digest"}
    REPORTS/log.txt       all that was printed
    REPORTS/results/      the files that the commands left in RESULTS
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deploy.host.installation import S3_OBJECT, Installation, need, script

WORK = "/var/lib/outrider-job"
ARTEFACT = f"{WORK}/artefact"
RESULTS = f"{WORK}/results"
LOAD = f"{WORK}/load.json"
"""The path on the host of a file that --load names."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(Installation):
    """The settings of a host that runs a job. Raises InvalidRequest for a value that cannot be."""

    commands: tuple[tuple[str, ...], ...]  # words behind `python -m`; an artefact is in ARTEFACT
    reports: str  # s3://BUCKET/PREFIX
    load: str | None = None  # s3://BUCKET/KEY of the file that --load names

    def __post_init__(self) -> None:
        super().__post_init__()
        for url in (self.reports, *([self.load] if self.load else [])):
            need(url, S3_OBJECT, "s3://BUCKET/KEY")


def job_script(settings: JobSettings) -> str:
    """The script."""
    values = settings.assignments("torch,aws,compile") | {
        "reports": settings.reports,
        "load": settings.load or "",
    }
    lines = "".join(f'    "$python" -m {shlex.join(words)}\n' for words in settings.commands)
    return script(values, f"run_commands() {{\n{lines}}}\n", main="job.sh")
