"""A target's service, its ports, and what it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

from grpc_comm.transport import Address, check_free
from inference.artifact import check_files, features_of
from inference.errors import InvalidRequest, OutriderError
from outrider.doctor.findings import Finding, fault, refused
from outrider.doctor.health import ask_health
from outrider.doctor.host import TargetHost
from outrider.options.roles import DoctorRole

UNIT = "outrider-target.service"


def check_service(host: TargetHost) -> Iterator[Finding]:
    """The systemd unit, where this host has it."""
    if not host.path(f"/etc/systemd/system/{UNIT}").exists():
        return
    state = host.answer("/usr/bin/systemctl", "show", UNIT, "--property=ActiveState", "--value")
    if state in ("active", "activating"):
        yield Finding("service", f"{UNIT} is {state}")
    else:
        why = f"journalctl -u {UNIT} -n 50 says why; systemctl restart {UNIT} tries again"
        yield fault("service", f"{UNIT} is {state or 'unknown to systemd'}", why)


def check_ports(host: TargetHost) -> Iterator[Finding]:
    """Whether the target serves on its port, or could, and so for its metrics."""
    options = host.options
    address = Address(options.host, options.port)
    if _answers(address, host):
        yield Finding("port", f"a target answers on {address}")
        return
    places = [address]
    if options.metrics_port is not None:
        places.append(Address(options.metrics_host, options.metrics_port))
    for place in places:
        try:
            check_free(place)
        except InvalidRequest as error:
            holder = f"ss -ltnp 'sport = :{place.port}' names who holds it"
            yield fault("port", f"{error}, and no target answers there", holder)
        else:
            yield Finding("port", f"{place} is free")


def _answers(address: Address, host: TargetHost) -> bool:
    own = host.options
    asked = DoctorRole(tls_cert=own.tls_cert, tls_key=own.tls_key)
    local = address._replace(host="127.0.0.1") if address.host in ("0.0.0.0", "::") else address  # noqa: S104
    try:
        ask_health(local, asked)
    except (grpc.RpcError, OutriderError):
        return False
    return True


def check_served(host: TargetHost) -> Iterator[Finding]:
    """The artefact, by the hashes of all its files, else the checkpoint."""
    if host.manifest is not None:
        directory = Path(host.options.artifact or "")
        check_files(directory, host.manifest)
        files = f"{len(host.manifest.files)} files as they were built"
        given = features_of(host.manifest.features)
        what = f"{host.manifest.model} for {host.manifest.target}, {given}, {files}"
        yield Finding("model", what)
        return
    from outrider.models import find_target

    try:
        checkpoint = find_target(host.options)
    except OutriderError as error:
        yield refused("model", error)
    else:
        yield Finding("model", f"{checkpoint.name} in {checkpoint.directory}")
