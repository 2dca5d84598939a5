"""Runs the verb: all checks, or only the target's health, for containers and Kubernetes. Findings
are printed as they come, and decide the exit code.

Health is gRPC's own health protocol, which needs no key. Neither torch nor a model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm.security import SecurityOptions, channel_security
from grpc_comm.statuses import status_error
from grpc_comm.transport import Address, channel_options
from inference.command import FAILED
from inference.errors import OutriderError
from outrider.doctor.finding import Finding, refused
from outrider.options.network import ConnectionOptions
from outrider.options.tool_roles import DoctorRole

_SECONDS, _WIDTH = 5.0, 12
_REMEDY = "wait while it loads or drains; else see its log"


def show(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print findings as they come. Returns 1 if one of them is a fault, else 0."""
    seen = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
            print(*_lines(finding), sep="\n", flush=True)
    faults = sum(finding.severity == "fault" for finding in seen)
    if as_json:
        print(
            json.dumps(
                {"faults": faults, "findings": [asdict(finding) for finding in seen]}, indent=1
            )
        )
    return FAILED if faults else 0


def _lines(finding: Finding) -> Iterator[str]:
    mark = "" if finding.severity == "fine" else f"{finding.severity.upper()}: "
    yield f"{finding.subject:{_WIDTH}}{mark}{finding.text}"
    if finding.remedy:
        yield f"{'':{_WIDTH}}remedy: {finding.remedy}"


def doctor(options: DoctorRole) -> int:
    """Print the findings. Returns 1 if one of them is a fault."""
    if options.health:
        return show(check_health(options.connection), as_json=options.as_json)
    checks = import_module("outrider.doctor.checks")  # needs a draft's packages; health does not
    return show(checks.check_all(options), as_json=options.as_json)


def check_health(options: ConnectionOptions) -> Iterator[Finding]:
    """The finding of the first of --target_host's targets."""
    address = options.endpoints[0].address
    try:
        status = ask_health(address, options)
    except OutriderError as error:
        yield refused("health", error)
    except grpc.RpcError as error:
        answer = status_error(error, f"{address} does not answer")
        yield Finding("health", str(answer), "fault", _REMEDY)
    else:
        serves = status == health_pb2.HealthCheckResponse.SERVING
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
        text = f"{address} says {name}"
        yield Finding("health", text) if serves else Finding("health", text, "fault", _REMEDY)


def ask_health(address: Address, options: ConnectionOptions) -> int:
    """The target's status. Raises grpc.RpcError without an answer."""
    own = Path(options.tls_cert) if options.tls_cert else None
    trusted = Path(options.tls_ca) if options.tls_ca else own
    security = channel_security(SecurityOptions(tls_ca=trusted, tls=options.tls), address)
    settings: list[tuple[str, int | str]] = list(channel_options(address))
    if trusted is own and own is not None:
        from grpc_comm.certificate import certificate_hosts

        # a client that trusts this very certificate accepts any of its names
        settings.append(("grpc.ssl_target_name_override", certificate_hosts(own)[0]))
    if security.credentials is None:
        channel = grpc.insecure_channel(str(address), settings)
    else:
        channel = grpc.secure_channel(str(address), security.credentials, settings)
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS).status)
