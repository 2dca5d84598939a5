"""Runs the verb: all checks, or only the target's health, for containers and Kubernetes. Each
finding is printed at once; a fault makes the exit code 1.

The health check uses gRPC's health protocol, which needs no key, and loads no torch and no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from grpc_comm.client.channel import Channel
from grpc_comm.security import SecurityOptions
from inference.command import FAILED, printable
from inference.errors import OutriderError
from outrider.doctor.finding import Finding
from outrider.options.network import ConnectionOptions
from outrider.options.tool_roles import DoctorRole

_SECONDS, _WIDTH = 5.0, 12
_REMEDY = "wait while it loads or drains; else see its log"


def show(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print each finding as soon as it is known. Returns 1 if any is a fault, else 0."""
    shown = []
    for finding in findings:
        shown.append(finding)
        if not as_json:
            print(*_lines(finding), sep="\n", flush=True)
    faults = sum(finding.severity == "fault" for finding in shown)
    if as_json:
        print(
            json.dumps(
                {"faults": faults, "findings": [asdict(finding) for finding in shown]}, indent=1
            )
        )
    return FAILED if faults else 0


def _lines(finding: Finding) -> Iterator[str]:
    mark = "" if finding.severity == "fine" else f"{finding.severity.upper()}: "
    yield f"{finding.subject:{_WIDTH}}{mark}{finding.text}"
    if finding.remedy:
        yield f"{'':{_WIDTH}}remedy: {finding.remedy}"


def doctor(options: DoctorRole) -> int:
    """Run the checks and print their findings. Returns 1 if any is a fault, else 0."""
    if options.health:
        return show(check_health(options.connection), as_json=options.as_json)
    checks = import_module("outrider.doctor.checks")  # needs a draft's packages; health does not
    return show(checks.check_all(options), as_json=options.as_json)


def check_health(options: ConnectionOptions) -> Iterator[Finding]:
    """Check the health of the first target of --target_host."""
    address, name = options.endpoints[0].address, ""
    trusted = Path(options.tls_ca) if options.tls_ca else None
    if options.tls_cert and trusted is None:
        from grpc_comm.certificate import certificate_hosts

        trusted = Path(options.tls_cert)
        name = certificate_hosts(trusted)[0]  # a trusted certificate may have any name
    try:
        channel = Channel(address, SecurityOptions(tls_ca=trusted, tls=options.tls), name)
        with closing(channel):
            channel.check_health(_SECONDS)
    except OutriderError as error:
        yield Finding("health", printable(str(error)), "fault", _REMEDY)
    else:
        yield Finding("health", f"{address} accepts sessions")
